"""Priority is sent only to servers that are known to order by it (engines.md, trap 1)."""

import msgspec
import pytest

from engines.adapters import adapter_for
from engines.contract import Steering
from policies.lane import Lane


def sent(kind: str, lane: Lane, *, has_priority: bool) -> dict:
    """The upstream body for an empty request."""
    steering = Steering(model="m", lane=lane, cache_salt="ab" * 16, attempt_id="a-1", is_streaming=False)
    return msgspec.json.decode(adapter_for(kind, has_priority=has_priority).body({}, steering))


@pytest.mark.parametrize("lane", list(Lane))
def test_vllm_gets_the_rank_only_where_it_orders_by_priority(lane):
    """Under first come first served a vLLM refuses the request."""
    assert "priority" not in sent("vllm", lane, has_priority=False)
    assert sent("vllm", lane, has_priority=True)["priority"] == lane.rank


def test_what_an_engine_can_do_follows_what_it_is_sent():
    """Seats are set by it: priority decides whether bulk must be cancelled, leaving out whether it must be counted."""
    assert not adapter_for("vllm").capabilities.priority
    assert adapter_for("vllm", has_priority=True).capabilities.priority
    assert adapter_for("warmlane", has_priority=True) is adapter_for("warmlane")
    assert [adapter_for(kind).capabilities.leaves_bulk_out for kind in ("warmlane", "vllm", "llama-server")] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("kind", ["llama-server", "openai"])
def test_priority_for_an_engine_without_is_refused(kind):
    """A setting that does nothing is a mistake somebody should see."""
    with pytest.raises(ValueError, match="knows no priorities"):
        adapter_for(kind, has_priority=True)


def test_an_unknown_engine_stays_unknown():
    """With or without a priority the known ones are named."""
    with pytest.raises(ValueError, match="is not one of"):
        adapter_for("vlm", has_priority=True)
