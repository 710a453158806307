"""What one run is made of."""

from pathlib import Path

from engines.launch.ready_line import ready_line
from engines.launch.worker_command import WorkerSpec
from gateway.home import Home
from gateway.lane_settings import InteractiveLane, LanesSection
from gateway.launch_plan import Launch
from gateway.settings import (
    GatewaySection,
    ModelSection,
    ReplicaSection,
    Settings,
)

WORKER = WorkerSpec("worker-1", "w", "fake", None, 8, 4096, 1)
REPLICA = ReplicaSection(name="a", model="r", engine="vllm", url="http://127.0.0.1:1")


def launch(settings=None, workers=(), config=None):
    """A run in a home that does not exist."""
    return Launch(settings or Settings(), config, Home(Path("/home/x")), "token", workers)


def fleet():
    """The workers that live now."""
    return b"the living"


def words(argv):
    """Options of a command as pairs."""
    return dict(zip(argv[3::2], argv[4::2], strict=True))


def test_a_gateway_gets_the_port_of_the_flags_and_the_same_configuration():
    """`--port` was merged into the settings already; the file is read again by the gateway."""
    settings = Settings(gateway=GatewaySection(port=9, drain_s=3))
    spec = launch(settings, config=Path("c.toml")).gateway(1, Path("/run/g.sock"), fleet)
    assert words(list(spec.argv(None))) == {
        "--config": "c.toml",
        "--home": "/home/x",
        "--control": "/run/g.sock",
        "--port": "9",
        "--number": "1",
        "--fleet": "the living",
    }
    assert spec.grace_s > 3


def test_a_restarted_gateway_comes_back_on_its_port():
    """Any free port (0) is chosen once."""
    spec = launch(Settings(gateway=GatewaySection(port=0))).gateway(1, Path("s"), fleet)
    assert words(list(spec.argv(None)))["--port"] == "0"
    assert words(list(spec.argv(ready_line(url="http://127.0.0.1:4242/v1"))))["--port"] == "4242"


def test_the_model_to_try_is_the_first_there_is():
    """Workers first, then named models, then attached replicas."""
    settings = Settings(models=(ModelSection(name="n"),), replicas=(REPLICA,))
    assert launch(settings, (WORKER,)).model == "w"
    assert launch(settings).model == "n"
    assert launch(Settings(replicas=(REPLICA,))).model == "r"
    assert launch().model == ""


def test_a_worker_is_told_the_interactive_objective():
    """`[lanes.interactive] itl_p95_s` binds our own workers' batches too, not only the seats on engines of others."""
    settings = Settings(lanes=LanesSection(interactive=InteractiveLane(itl_p95_s=0.05)))
    spec = launch(settings, workers=(WORKER,)).worker(WORKER)
    assert words(list(spec.argv(None))[:-2])["--itl-p95-s"] == "0.05"
    assert "--itl-p95-s" not in launch(workers=(WORKER,)).worker(WORKER).argv(None)


def test_a_workers_grace_is_longer_than_its_drain():
    """Else it is killed in mid-answer."""
    spec = launch(workers=(WORKER,)).worker(WORKER)
    options = words(list(spec.argv(None))[:-2])
    assert spec.grace_s > float(options["--drain-s"])
