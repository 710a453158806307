"""Decisions as receipts: the public JSON, terms that add up, reasons in words."""

import msgspec
import pytest

from routing.decision import Actual, RouteDecision, Why
from routing.filters import Rejection
from routing.replica import ReplicaState
from tests.routing.fleet import Fleet


def test_receipt_has_the_shape_of_the_contract():
    """People and scripts outside rely on these names."""
    fleet = Fleet(3)
    fleet.pool.move("r3", ReplicaState.DRAINING)
    warm = fleet.dispatch("system" * 200, "hello")
    decision = fleet.route("system" * 200, "hello", "answer", "more")
    receipt = msgspec.json.decode(msgspec.json.encode(decision.receipt("req-1", Actual(ttft_ms=12.5, hit_tokens=290))))
    assert list(receipt) == ["request_id", "chosen", "reason", "candidates", "predicted", "actual"]
    assert (receipt["request_id"], receipt["chosen"]) == ("req-1", warm.replica.name)
    assert receipt["predicted"] == {"ttft_ms": round(decision.ttft_s * 1000, 3), "hit_tokens": decision.hit_tokens}
    assert receipt["actual"] == {"ttft_ms": 12.5, "hit_tokens": 290, "prompt_tokens": None, "outcome": None}
    by_name = {candidate["replica"]: candidate for candidate in receipt["candidates"]}
    assert set(by_name) == {"r1", "r2", "r3"}
    chosen = by_name[warm.replica.name]
    assert chosen["hit_tokens"] == {"exact": None, "shadow": 301, "fused": 301, "confidence": 1.0}
    assert set(chosen["terms_ms"]) == {"seat", "prefill", "base", "interference", "eviction"}
    assert chosen["filtered"] is None
    assert by_name["r3"]["filtered"] == "not ready"
    assert by_name["r3"]["terms_ms"] is by_name["r3"]["score_ms"] is by_name["r3"]["hit_tokens"] is None


@pytest.mark.parametrize("prompt", ["short", "long " * 4000])
@pytest.mark.parametrize("kv_tokens", [200, 100_000])
def test_terms_add_up_to_the_score(prompt, kv_tokens):
    """The receipt's terms are computed apart from the score and must never drift from it."""
    fleet = Fleet(3, kv_tokens=kv_tokens)
    fleet.hold("r1", 3, read=False)
    fleet.hold("r2", 2)
    fleet.dispatch(prompt)
    decision = fleet.route(prompt, "more")
    assert isinstance(decision, RouteDecision)
    assert len(decision.candidates) == 3
    for candidate in decision.candidates:
        terms = candidate.seat_ms + candidate.prefill_ms + candidate.base_ms + candidate.interference_ms
        assert terms + candidate.eviction_ms == pytest.approx(candidate.score_ms)
        assert terms == pytest.approx(candidate.ttft_ms)
        assert candidate.evicts == (candidate.eviction_ms > 0)
    assert any(candidate.evicts for candidate in decision.candidates) == (kv_tokens == 200 and prompt != "short")


def test_every_rule_has_its_sentence():
    """A reason names the replicas it speaks of."""
    decision = Fleet(1).route("hello")
    for why in Why:
        words = {"chosen": "r1", "passed": "r2", "hit": 10, "prompt": 20}
        assert "r1" in why.value.format(**words)
    assert decision.reason == "no replica holds a useful part of the prompt; r1 is its home by hash"
    assert len({reason.value for reason in Rejection}) == len(Rejection)


def test_a_decision_is_frozen_and_outlives_its_replica():
    """It may sit in a store of receipts long after the replica is gone."""
    fleet = Fleet(1)
    decision = fleet.route("hello")
    fleet.pool.remove("r1")
    assert decision.receipt("req-1").chosen == "r1"
    with pytest.raises(AttributeError):
        decision.chosen = "r2"
