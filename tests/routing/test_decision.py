"""Decisions as receipts: the public JSON, terms that add up, reasons in words."""

import math

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
    evicts = any(candidate.eviction_ms > 0 for candidate in decision.candidates)
    assert evicts == (kv_tokens == 200 and prompt != "short")


def test_every_rule_has_its_sentence():
    """A reason names the replicas it speaks of."""
    decision = Fleet(1).route("hello")
    for why in Why:
        words = {"chosen": "r1", "passed": "r2", "hit": 10, "prompt": 20, "held": "r3 holds 1"}
        assert "r1" in why.value.format(**words)
    assert decision.reason.startswith(
        "no replica that can take it holds any of the 1 prompt tokens; r1 is the prompt's"
    )
    assert len({reason.value for reason in Rejection}) == len(Rejection)


def test_a_hit_too_small_to_decide_is_told_with_its_number():
    """Whoever looks for a lost hit must see how far from useful it was."""
    fleet = Fleet(2)
    fleet.dispatch("system" * 20)  # about 30 tokens
    decision = fleet.route("system" * 20, "other" * 200)
    held = max(candidate.fused_tokens for candidate in decision.candidates)
    share = held / decision.prompt_tokens
    assert decision.why in {Why.HOME, Why.NEXT_HOME}
    assert 0 < held < 64
    assert f" holds about {held} of {decision.prompt_tokens} prompt tokens ({share:.0%}), and only " in decision.reason
    assert f"only {math.ceil(max(64, decision.prompt_tokens / 4))} (25%, at least 64) would decide; " in decision.reason


def test_what_is_not_learned_yet_is_called_assumed():
    """30 ms of base say something only after a request has shown them."""
    fleet = Fleet(1)
    decision = fleet.route("hello")
    row = "interference (a decoding request like 4 prompt tokens)"
    told = "; of r1 assumed, not learned yet: prefill (2000 prompt tokens/s)"
    assert decision.reason.endswith(f"{told}, base (30 ms), {row}")
    assert decision.receipt("req-1").candidates[0].assumed == ["prefill", "base", "interference"]
    replica = fleet.pool.get("r1")
    replica.ttft.observe(10, 0.2)
    learned_base = fleet.route("hello")
    assert learned_base.reason.endswith(f"{told}, {row}")
    replica.ttft.observe(1000, 0.7)
    replica.row_tokens = 5.5
    assert fleet.route("hello").candidates[0].assumed == ()
    assert "assumed" not in fleet.route("hello").reason


def test_a_decision_is_frozen_and_outlives_its_replica():
    """It may sit in a store of receipts long after the replica is gone."""
    fleet = Fleet(1)
    decision = fleet.route("hello")
    fleet.pool.remove("r1")
    assert decision.receipt("req-1").chosen == "r1"
    with pytest.raises(AttributeError):
        decision.chosen = "r2"
