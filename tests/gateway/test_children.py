"""The supervisor's children, played by small scripts."""

import asyncio
import os
import signal
import sys

import pytest

from engines.launch.supervised import ChildSpec, ChildState
from engines.launch.worker_command import WorkerSpec
from gateway.children import Children
from gateway.settings import Settings

READY = "print('ready url=http://127.0.0.1:7/v1', flush=True)"
FOREVER = "import time\nwhile True: time.sleep(60)"
DEAF = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{READY}\n{FOREVER}"


def dies(sentence, code=1):
    """A child that says why it cannot start."""
    return f"import sys\nprint({sentence!r}, file=sys.stderr)\nsys.exit({code})"


class Scripts:
    """Stands for a `Launch`: one gateway and one worker, each a script."""

    settings = Settings()
    workers = (WorkerSpec("worker-1", "m", "fake", None, 8, 4096, 1),)

    def __init__(self, gateway, worker, grace_s=10.0):
        self._gateway, self._worker, self._grace_s = gateway, worker, grace_s

    def gateway(self, number, _socket, _fleet):
        """The gateway process."""
        return self._spec(f"gateway-{number}", self._gateway)

    def worker(self, spec):
        """The worker process."""
        return self._spec(spec.name, self._worker)

    def _spec(self, name, code):
        return ChildSpec(name, lambda _ready: [sys.executable, "-c", code], grace_s=self._grace_s)


async def until(condition):
    """Wait for what real processes bring about."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # nobody tells: it is seen from outside
            await asyncio.sleep(0.01)


async def first_failure(tmp_path, scripts):
    """The sentence with which the first start is given up."""
    failed = asyncio.get_running_loop().create_future()
    children = Children(scripts, tmp_path, lambda sentence: failed.done() or failed.set_result(sentence))
    async with children.running(asyncio.Event()):
        sentence = await asyncio.wait_for(failed, 60)
    assert children.worker_names == {"worker-1"}
    return sentence


async def test_a_gateway_that_does_not_start_is_given_up_at_once(tmp_path):
    """Its own sentence is the answer: a port taken, a store that cannot be opened."""
    sentence = await first_failure(tmp_path, Scripts(dies("cannot listen on port 7"), FOREVER))
    assert sentence == "the gateway does not start: cannot listen on port 7"


async def test_a_worker_that_does_not_start_is_given_up_after_some_tries(tmp_path):
    """One bad start may be chance, the same three times is not."""
    sentence = await first_failure(tmp_path, Scripts(READY + "\n" + FOREVER, dies("warmlane worker: no such model")))
    assert sentence == "worker-1 (model m) does not start: no such model"


async def test_once_all_was_ready_a_failure_is_only_retried(tmp_path):
    """A worker that falls for good must not take the gateway and the other workers with it."""
    failed = []
    children = Children(Scripts(READY + "\n" + FOREVER, dies("gone")), tmp_path, failed.append)
    children.has_started = True
    async with children.running(asyncio.Event()) as tasks:
        worker = children._workers[0]
        await until(lambda: worker.generation >= 4)
        assert not any(task.done() for task in tasks)
    assert failed == []


async def test_all_children_are_stopped_at_the_end(tmp_path):
    """Nothing runs after the block."""
    children = Children(Scripts(f"{READY}\n{FOREVER}", f"{READY}\n{FOREVER}"), tmp_path, pytest.fail)
    async with children.running(asyncio.Event()) as tasks:
        await until(lambda: children.fleet.live and children.gateway_port)
        assert children.gateway_port == 7
    assert all(task.done() for task in tasks)
    assert {child.state for child in children._all()} == {ChildState.STOPPED}


async def test_force_ends_children_that_do_not_hear(tmp_path):
    """The second Ctrl-C does not wait for the grace."""
    children = Children(Scripts(DEAF, DEAF, grace_s=3600), tmp_path, pytest.fail)
    force = asyncio.Event()
    async with children.running(force):
        await until(lambda: children.fleet.live and children.gateway_port)
        asyncio.get_running_loop().call_later(0.05, force.set)
    assert {child.state for child in children._all()} == {ChildState.STOPPED}


async def test_an_abandoned_run_leaves_no_child(tmp_path):
    """An error elsewhere in the supervisor."""
    children = Children(Scripts(FOREVER, FOREVER), tmp_path, pytest.fail)
    with pytest.raises(RuntimeError, match="elsewhere"):
        async with children.running(asyncio.Event()):
            raise RuntimeError("elsewhere")
    assert {child.state for child in children._all()} == {ChildState.STOPPED}


async def test_the_death_of_a_gateway_with_leases_is_told_once_a_life(tmp_path):
    """What it held is given back by its id, which a restarted one does not have."""
    leased = f"import os\nprint(f'ready url=http://127.0.0.1:7/v1 gateway=g{{os.getpid()}}', flush=True)\n{FOREVER}"
    dead = []
    children = Children(Scripts(leased, f"{READY}\n{FOREVER}"), tmp_path, pytest.fail, dead.append)
    assert not children.are_gateways_ready
    async with children.running(asyncio.Event()):
        gateway = next(iter(children._gateways.values()))
        await until(lambda: children.are_gateways_ready)
        first = gateway.pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: dead)
        await until(lambda: children.are_gateways_ready)
        assert gateway.pid != first
    assert dead == [f"g{first}"]
