"""What stands in an engine's place where a model only embeds."""

from engines.core.load import EngineLoad
from engines.core.sequence import GenerateRequest
from engines.worker.no_engine import NoEngine


def test_it_is_idle_refuses_everything_and_is_healthy_until_stopped():
    """No delta ever comes, and nothing waits for one."""
    engine = NoEngine()
    engine.start()
    deltas = []
    refusal = engine.submit(GenerateRequest("a", (1, 2, 3)), deltas.append)
    assert refusal is not None
    engine.abort("a")
    engine.drain()
    assert (deltas, engine.num_open, engine.is_full(), engine.load()) == ([], 0, False, EngineLoad())
    assert engine.is_healthy()
    assert engine.stop(1.0)
    assert engine.stop()
    assert not engine.is_healthy()
