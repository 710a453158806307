"""Which replica, and why: warm ones first, load for the cold, truth about absence, learning from what came."""

from collections import Counter
from dataclasses import replace

import pytest

from cache_affinity.prefix import prefix_key
from engines.contract import Capabilities, Fault
from policies.lane import Lane
from routing.decision import Absence, Full, NoReplica, Why
from routing.filters import Rejection
from routing.pool import ReplicaPool
from routing.pool_settings import PoolSettings
from routing.replica import ReplicaState
from routing.router import Router
from tests.routing.fleet import Fleet, key_of, spec

SYSTEM = "You are a careful assistant. " * 100  # about 725 tokens


def session(number: int, turns: int = 1) -> list[str]:
    """The messages of one conversation: its own long opening, then `turns` exchanges."""
    opening = f"session {number} " * 150
    return [SYSTEM, opening, *(f"answer {turn} " * 20 for turn in range(turns))]


def break_down(fleet: Fleet, name: str, fault: Fault = Fault.STATUS, retry_after_s: float | None = None) -> None:
    """Open one replica's breaker (or set it aside) by attempts that failed."""
    for lease in fleet.hold(name, 3):
        fleet.router.observe_failure(lease, fault, fleet.now, retry_after_s=retry_after_s)
        lease.end()


def test_the_second_turn_goes_to_the_replica_of_the_first():
    """The whole point, and the receipt says why."""
    fleet = Fleet(4)
    first = fleet.dispatch(*session(1))
    first.end()
    decision = fleet.route(*session(1, turns=3))
    assert decision.chosen == first.replica.name
    assert decision.why is Why.WARM
    assert decision.hit_tokens > 0.8 * decision.prompt_tokens
    assert decision.uncached_tokens == decision.prompt_tokens - decision.hit_tokens
    assert f"{first.replica.name} holds about {decision.hit_tokens} of" in decision.reason


def test_two_tenants_with_one_prompt_share_no_hit_and_one_tenant_does():
    """No request may be drawn to, or learn from, what another tenant sent."""
    fleet = Fleet(4)
    fleet.dispatch(*session(1), salt="alder").end()
    assert fleet.route(*session(1), salt="birch").hit_tokens == 0
    assert fleet.route(*session(1), salt="alder").hit_tokens > 0


def test_routing_changes_nothing():
    """A dry run is the same call."""
    fleet = Fleet(4)
    fleet.dispatch(*session(1))
    before = repr(fleet.pool)
    decisions = {fleet.route(*session(2)).chosen for _ in range(5)}
    assert len(decisions) == 1
    assert repr(fleet.pool) == before


def test_a_burst_of_siblings_meets():
    """Agents fan out: requests with one long prefix, none answered yet, should read it once."""
    fleet = Fleet(8)
    prefix = "long shared context " * 400
    leases = [fleet.dispatch(prefix, f"task {number}", read=False) for number in range(4)]
    assert len({lease.replica.name for lease in leases}) == 1


def test_a_small_shared_head_does_not_herd_sessions_together():
    """A short system prompt that everybody shares is not a reason to give up an even spread."""
    fleet = Fleet(4, seats=64)
    leases = [fleet.dispatch("Be brief. " * 30, f"another topic {number} " * 100) for number in range(40)]
    counts = Counter(lease.replica.name for lease in leases)
    assert len(counts) == 4
    assert max(counts.values()) <= 14


def test_a_warm_replica_with_a_queue_is_left_for_one_that_answers_far_sooner():
    """A hit is worth only the time it saves."""
    fleet = Fleet(2, seats=64)
    warm = fleet.dispatch("topic " * 200).replica.name
    busy = fleet.hold(warm, 1, text="x" * 2_000, read=False)
    decision = fleet.route("topic " * 200, "more")
    assert decision.chosen != warm
    assert decision.why is Why.CHEAPER
    assert decision.passed == warm
    busy[0].prefilled()
    assert fleet.route("topic " * 200, "more").chosen == warm


def test_a_large_hit_bears_a_short_queue():
    """Reading again elsewhere would take longer than waiting here."""
    fleet = Fleet(2, seats=64)
    warm = fleet.dispatch("topic " * 5000).replica.name
    fleet.hold(warm, 2, read=False)
    assert fleet.route("topic " * 5000, "more").chosen == warm


@pytest.mark.parametrize("held", [SYSTEM, ""])
def test_a_crowded_warm_replica_is_left_for_another_that_holds_some_or_for_any(held):
    """What is moved goes where most of its prefix lies, however little that is."""
    fleet = Fleet(4, seats=64)
    opening = "a long document " * 800
    warm = fleet.dispatch(SYSTEM, opening).replica.name
    other = next(replica.name for replica in fleet.pool if replica.name != warm)
    if held:
        fleet.pool.get(other).shadow.insert(key_of(held), fleet.now)
    fleet.hold(warm, 50)
    decision = fleet.route(SYSTEM, opening, "more")
    assert (decision.why, decision.passed) == (Why.REPLICATED, warm)
    assert decision.chosen == other if held else decision.chosen != warm


def test_a_crowded_warm_replica_is_passed_for_another_that_holds_less():
    """The next best holder, not a cold one."""
    fleet = Fleet(4, seats=32)
    warm = fleet.dispatch(*session(1)).replica.name
    other = next(replica.name for replica in fleet.pool if replica.name != warm)
    fleet.pool.get(other).shadow.insert(key_of(SYSTEM), fleet.now)
    fleet.hold(warm, 28)
    decision = fleet.route(*session(1, turns=2))
    assert (decision.chosen, decision.why, decision.passed) == (other, Why.REPLICATED, warm)


def test_an_engine_whose_cache_is_off_stops_attracting_requests():
    """Predicted hits that are never confirmed lose their weight."""
    fleet = Fleet(2)
    for _ in range(80):
        lease = fleet.dispatch(*session(1))
        decision = fleet.route(*session(1))
        fleet.router.settled(decision, lease, now=fleet.now, prompt_tokens=1400, cached_tokens=0)
        lease.end()
    assert fleet.route(*session(1)).why in {Why.HOME, Why.NEXT_HOME}


def test_what_reading_costs_others_is_learned_from_answers_but_not_from_bulk_that_is_left_out():
    """How much people wait to have read is theirs; bulk that the engine leaves out of their steps delays nobody."""
    fleet = Fleet(1, capabilities=Capabilities(leaves_bulk_out=True))
    for lane in (Lane.BULK, Lane.INTERACTIVE):
        assert not fleet.router.usual_of("m").reading_tokens
        with fleet.dispatch(*session(1), lane=lane) as lease:
            decision = fleet.route(*session(1), lane=lane)
            fleet.router.settled(decision, lease, now=fleet.now, prompt_tokens=1400, cached_tokens=400, ttft_s=0.5)
    assert fleet.router.usual_of("m").reading_tokens == 1000
    assert fleet.router.usual_of("m").ms_per_token == fleet.pool.get("r1").ttft.ms_per_token


def test_what_is_usual_of_a_model_is_forgotten_with_its_replicas():
    """Models come and go in a fleet that is discovered; what is kept of them is bounded by those that are there."""
    fleet = Fleet(1)
    kept = fleet.router.usual_of("m")
    for number in range(5):
        fleet.add("other", model=f"m{number}")
        gone = fleet.router.usual_of(f"m{number}")
        fleet.pool.remove("other")
    assert fleet.router.usual_of("m") is kept
    fleet.router.usual_of("new")
    assert fleet.router.usual_of("m4") is not gone


def test_p23_the_sessions_of_a_removed_replica_move_to_one_new_home():
    """P23: not scattered: every later turn of a moved session meets its first."""
    fleet = Fleet(4)
    homes = {}
    for number in range(40):
        with fleet.dispatch(*session(number)) as lease:
            homes[number] = lease.replica.name
    fleet.pool.remove("r2")
    for number in range(40):
        places = []
        for turn in range(2, 5):
            with fleet.dispatch(*session(number, turn)) as lease:
                places.append(lease.replica.name)
        assert len(set(places)) == 1
        assert "r2" not in places
        if homes[number] != "r2":
            assert places[0] == homes[number]


@pytest.mark.parametrize("head", [SYSTEM, ""], ids=["shared head", "nothing shared"])
def test_p24_one_hot_replica_moves_only_its_own_sessions(head):
    """P24: 8 replicas, 64 sessions, one hot with 30 long requests: > 95% of the others stay, few hits are lost."""
    fleet = Fleet(8, seats=32)
    messages = [[head or f"system {number} " * 200, f"session {number} " * 150] for number in range(64)]

    def turn(number: int) -> tuple[dict[int, str], float]:
        """All sessions decode at once, each prompt read before the next comes: where each goes, and the hit ratio."""
        decisions, leases = [], []
        for index, session in enumerate(messages):
            decisions.append(fleet.route(*session, *(f"answer {index} {past} " * 20 for past in range(number))))
            leases.append(fleet.pool.lease(decisions[-1], fleet.now))
            leases[-1].prefilled()
        for lease in leases:
            lease.end()
        hit = sum(decision.hit_tokens for decision in decisions) / sum(d.prompt_tokens for d in decisions)
        return {index: decision.chosen for index, decision in enumerate(decisions)}, hit

    spread, _ = turn(0)
    assert len(set(spread.values())) >= 6
    before, hit_before = turn(1)
    hot_name = before[0]
    hot = fleet.hold(hot_name, 30)
    after, hit_after = turn(2)
    later, hit_later = turn(3)
    others = [number for number in before if before[number] != hot_name]
    assert len([number for number in others if after[number] == before[number]]) > 0.95 * len(others)
    assert all(after[number] != hot_name for number in before if before[number] == hot_name)
    assert len([number for number in after if later[number] == after[number]]) > 0.95 * len(after)
    assert (hit_after + hit_later) / 2 > 0.9 * hit_before
    assert [lease.end() for lease in hot] == [True] * 30


def test_p26_cold_requests_go_by_load_not_by_index_size():
    """P26: r1 runs 40, r2 is idle with a large index: unseen prompts go to r2 until the loads are about equal."""
    fleet = Fleet(2, seats=128)
    running = fleet.hold("r1", 40)
    for number in range(500):
        fleet.pool.get("r2").shadow.insert(key_of(SYSTEM, f"old {number}"), fleet.now)
    chosen = [fleet.dispatch(f"unseen {number} " * 60).replica.name for number in range(100)]
    level = next(i for i in range(100) if chosen[: i + 1].count("r2") * 1.25 >= 40)
    assert chosen[:level].count("r2") >= 0.9 * level
    assert chosen[:40].count("r2") >= 36
    counts = [replica.num_in_flight for replica in fleet.pool]
    assert max(counts) <= 1.25 * min(counts) + 2
    assert len(running) == 40


def test_p26_short_cold_requests_all_go_to_the_idle_replica():
    """P26: when they end before the next begins, the busy one never gets any."""
    fleet = Fleet(2, seats=128)
    fleet.hold("r1", 40)
    for number in range(100):
        with fleet.dispatch(f"unseen {number} " * 60) as lease:
            assert lease.replica.name == "r2"


def test_hot_shared_prefix_is_spread_once_replicas_hold_it():
    """One 4,000-token system prompt, distinct tails, all running: no replica far above the mean after warm-up."""
    fleet = Fleet(8, seats=64)
    head = "system prompt of everybody " * 600
    leases = [fleet.dispatch(head, f"tail {number}") for number in range(400)]
    recent = Counter(lease.replica.name for lease in leases[200:])
    assert len(recent) == 8
    loads = [replica.num_in_flight for replica in fleet.pool]
    assert max(loads) <= 1.3 * (sum(loads) / 8)


def test_unknown_model_is_told_apart_from_a_model_without_ready_replicas():
    """404 and 503 are different answers."""
    fleet = Fleet(0)
    assert fleet.route("hello") == NoReplica(Absence.UNKNOWN_MODEL, 0.0)
    fleet.pool.upsert(spec("r1"), fleet.now)
    absence = fleet.route("hello")
    assert (absence.reason, absence.filtered) == (Absence.NONE_READY, (("r1", Rejection.NOT_READY),))
    assert absence.retry_after_s > 0


def test_a_full_replica_is_waited_for_and_not_a_refusal():
    """A missing seat comes back; the gateway's queue waits for it."""
    fleet = Fleet(2, PoolSettings(reserved_seats={Lane.INTERACTIVE: 1}), seats=2)
    leases = [fleet.dispatch(f"{number}", lane=Lane.BULK) for number in range(2)]
    full = fleet.route("more", lane=Lane.BULK)
    assert full == Full(2, (("r1", Rejection.NO_SEAT), ("r2", Rejection.NO_SEAT)))
    assert fleet.route("more").chosen in {"r1", "r2"}
    leases[0].end()
    assert fleet.route("more", lane=Lane.BULK).chosen == leases[0].replica.name


def test_a_full_replica_is_waited_for_even_when_others_were_tried_or_fail():
    """Hope in one is better than a refusal because of the others."""
    fleet = Fleet(3, seats=3)
    break_down(fleet, "r2")
    fleet.hold("r1", 3)
    assert isinstance(fleet.route("hello", excluded=["r3"]), Full)


def test_excluded_replicas_are_not_tried_again():
    """A retry goes elsewhere, and ends when there is no elsewhere."""
    fleet = Fleet(2)
    assert fleet.route("hello", excluded=["r1"]).chosen == "r2"
    absence = fleet.route("hello", excluded=["r1", "r2"])
    assert (absence.reason, absence.retry_after_s) == (Absence.TRIED, 0.0)


def test_a_request_goes_only_where_its_surface_is_served():
    """Of a model's replicas some may only generate; a seat there is of no use, nor is the prompt's home."""
    fleet = Fleet(0)
    fleet.add("r1", surfaces=frozenset({"chat"}))
    fleet.add("r2", surfaces=frozenset({"chat", "embed"}), seats=1)
    fleet.add("r3")  # nobody has said
    needing = replace(fleet.query("a"), needs="embed")
    for query in (needing, replace(needing, excluded=frozenset({"r3"})), replace(needing, excluded=frozenset({"r2"}))):
        decision = fleet.router.route(query, fleet.now)
        assert decision.chosen in {"r2", "r3"} - query.excluded
        assert ("r1", Rejection.UNFIT) in decision.filtered
        assert fleet.router.home(query) in {"r2", "r3"}
    fleet.pool.remove("r3")
    fleet.hold("r2", 1)
    assert isinstance(fleet.router.route(needing, fleet.now), Full)
    fleet.pool.remove("r2")
    found = fleet.router.route(needing, fleet.now)
    assert (found.reason, found.retry_after_s, fleet.router.home(needing)) == (Absence.UNFIT, 0.0, None)


def test_tenant_isolation_keeps_a_project_off_a_replica():
    """The hook sees project and replica; a refusal is shown as such."""
    fleet = Fleet(2)
    router = Router(
        fleet.pool, fleet.router.ratios, may_use=lambda project, replica: (project, replica.name) != ("alder", "r1")
    )
    decision = router.route(fleet.query("hello"), fleet.now)
    assert (decision.chosen, decision.filtered) == ("r2", (("r1", Rejection.NOT_ALLOWED),))
    closed = Router(fleet.pool, fleet.router.ratios, may_use=lambda project, replica: False)
    assert closed.route(fleet.query("hello"), fleet.now).reason is Absence.NOT_ALLOWED


def test_p28_backpressure_moves_requests_away_until_the_latest_wait_is_over():
    """P28: the other replica serves meanwhile; alone, the answer says for how long."""
    fleet = Fleet(2)
    break_down(fleet, "r1", Fault.BACKPRESSURE, retry_after_s=3.0)
    assert {fleet.route(f"{number}").chosen for number in range(20)} == {"r2"}
    absence = fleet.route("hello", excluded=["r2"])
    assert (absence.reason, absence.retry_after_s) == (Absence.BUSY, 3.0)
    fleet.now += 3.0
    assert fleet.route("hello", excluded=["r2"]).chosen == "r1"


def test_the_soonest_of_several_waits_is_told():
    """30 s and 5 s: the client may come back in 5."""
    fleet = Fleet(2)
    break_down(fleet, "r1", Fault.BACKPRESSURE, retry_after_s=30.0)
    break_down(fleet, "r2", Fault.BACKPRESSURE, retry_after_s=5.0)
    assert fleet.route("hello").retry_after_s == 5.0


def test_failing_replicas_are_avoided_and_probed():
    """Three faults in a row, then one request finds out whether it is over."""
    fleet = Fleet(1)
    break_down(fleet, "r1")
    absence = fleet.route("hello")
    assert (absence.reason, absence.retry_after_s) == (Absence.FAILING, 2.0)
    fleet.now += 2.0
    with fleet.dispatch("hello") as probe:
        assert fleet.route("hello").reason is Absence.FAILING
        fleet.router.settled(fleet.router.route(fleet.query("x"), fleet.now + 60), probe, now=fleet.now)
    assert fleet.route("hello").chosen == "r1"


def test_client_errors_never_count_against_a_replica():
    """A tenant with broken requests must not close a replica to others."""
    fleet = Fleet(1)
    for number in range(20):
        with fleet.dispatch(f"{number}") as lease:
            fleet.router.observe_failure(lease, Fault.CLIENT, fleet.now)
    assert fleet.route("hello").chosen == "r1"


def test_settling_learns_ratio_times_and_hits():
    """What the engine reports makes the next prediction better."""
    fleet = Fleet(1)
    replica = fleet.pool.get("r1")
    for number in range(60):
        decision = fleet.route(f"prompt {number} " * 300)
        with fleet.pool.lease(decision, fleet.now) as lease:
            num_tokens = decision.key.total_bytes // 3
            fleet.router.settled(
                decision,
                lease,
                now=fleet.now,
                prompt_tokens=num_tokens,
                cached_tokens=0,
                ttft_s=0.03 + num_tokens / 400,
            )
    assert abs(fleet.router.ratios.of("m").bytes_per_token - 3.0) < 0.05
    assert 350 < replica.ttft.prefill_rate < 450
    decision = fleet.route("unseen words " * 300)
    assert decision.ttft_s == pytest.approx(0.03 + 1300 / 400, rel=0.15)


def test_a_missing_report_is_not_zero():
    """Engines that say nothing about their cache keep their affinity."""
    fleet = Fleet(1)
    fleet.dispatch(*session(1)).end()
    for _ in range(50):
        decision = fleet.route(*session(1))
        with fleet.pool.lease(decision, fleet.now) as lease:
            fleet.router.settled(decision, lease, now=fleet.now)
    assert fleet.pool.get("r1").confidence.value == 1.0
    assert fleet.router.ratios.of("m").bytes_per_token == 4.0


def test_faster_engines_of_one_model_serve_what_is_held_nowhere_equally_warm():
    """Learned costs decide between engine kinds that hold the same prefix."""
    fleet = Fleet(2)
    for name, rate in [("r1", 200.0), ("r2", 20_000.0)]:
        for _ in range(40):
            fleet.pool.get(name).ttft.observe(2000, 0.03 + 2000 / rate)
        fleet.pool.get(name).shadow.insert(key_of(SYSTEM), fleet.now)
    assert fleet.route(SYSTEM, "and now " * 100).chosen == "r2"


def test_an_empty_prompt_is_routed():
    """Nothing to hash is no reason to fail."""
    fleet = Fleet(3)
    assert fleet.route().chosen in {"r1", "r2", "r3"}
    assert fleet.route().prompt_tokens == 1


def test_joining_draining_and_lost_replicas_get_nothing():
    """Only a ready replica is given requests."""
    pool = ReplicaPool()
    fleet = Fleet(1)
    assert len(pool) == 0
    for state in (ReplicaState.DRAINING, ReplicaState.JOINING, ReplicaState.LOST):
        assert fleet.pool.move("r1", state)
        assert fleet.route("hello").reason is Absence.NONE_READY
    assert fleet.pool.move("r1", ReplicaState.READY)
    assert fleet.route("hello").chosen == "r1"


def test_people_do_not_feel_bulk_that_is_left_out_of_their_steps():
    """On our own workers a bulk flood repels no conversation from its warm replica; bulk itself sees all load."""
    fleet = Fleet(2, seats=8, bulk_seats=8, capabilities=Capabilities(leaves_bulk_out=True))
    with fleet.dispatch(*session(1)) as warm:
        home = warm.replica.name
    flood = fleet.hold(home, 8, lane=Lane.BULK, read=False)
    replica = fleet.pool.get(home)
    assert replica.hidden_work == replica.work_tokens > 0
    assert fleet.route(*session(1, turns=2)).chosen == home
    assert fleet.route("more jobs", lane=Lane.BULK).chosen != home
    for lease in flood:
        lease.end()
    assert (replica.hidden_work, replica.hidden_tokens, replica.hidden_in_flight) == (0, 0, 0)


def test_bulk_that_is_kept_apart_teaches_nothing_about_hits():
    """Workers evict what only bulk has held first: that its hits fail says nothing of people's."""
    fleet = Fleet(1, seats=8, bulk_seats=8, capabilities=Capabilities(leaves_bulk_out=True))
    replica = fleet.pool.get("r1")
    for lane, is_taught in [(Lane.BULK, False), (Lane.INTERACTIVE, True)]:
        before = replica.confidence.value
        with fleet.dispatch(*session(1), lane=lane) as lease:
            fleet.pool.learn_hit(lease, 1000, 0)
        assert (replica.confidence.value < before) is is_taught


def test_bulk_seats_of_their_own_are_beside_those_of_people():
    """Full of bulk, a worker still takes people up to its seats, and the other way round."""
    fleet = Fleet(1, seats=2, bulk_seats=3, capabilities=Capabilities(leaves_bulk_out=True))
    leases = fleet.hold("r1", 3, lane=Lane.BULK)
    assert isinstance(fleet.route("job", lane=Lane.BULK), Full)
    leases += fleet.hold("r1", 2, text="person")
    assert isinstance(fleet.route("person"), Full)
    for lease in leases:
        lease.end()
    assert fleet.pool.get("r1").num_in_flight == 0


def test_a_pinned_lane_has_only_the_replicas_with_its_labels():
    """All of them, with the same values; what else a replica is labelled makes no difference."""
    fleet = Fleet(2)
    fleet.add("r3", labels={"pool": "night", "zone": "x"})
    fleet.add("r4", labels={"pool": "day"})
    query = replace(fleet.query("hello"), labels=frozenset({("pool", "night")}))
    decision = fleet.router.route(query, fleet.now)
    assert decision.chosen == "r3"
    assert decision.filtered == tuple((name, Rejection.NOT_LABELLED) for name in ("r1", "r2", "r4"))
    fleet.pool.move("r3", ReplicaState.DRAINING)
    assert fleet.router.route(query, fleet.now).reason is Absence.NONE_READY
    fleet.pool.remove("r3")
    absence = fleet.router.route(query, fleet.now)
    assert absence.reason is Absence.NOT_LABELLED
    assert absence.sentence.endswith("labels of this lane: the interactive lane goes only to replicas with pool=night")


def test_a_barred_replica_is_waited_for():
    """It has no seat for this tenant now: no absence, and no seat for nobody."""
    fleet = Fleet(2)
    query = replace(fleet.query("hello"), barred=frozenset({"r1"}))
    assert fleet.router.route(query, fleet.now).chosen == "r2"
    fleet.pool.move("r2", ReplicaState.DRAINING)
    found = fleet.router.route(query, fleet.now)
    assert isinstance(found, Full)
    assert found.filtered == (("r1", Rejection.BARRED), ("r2", Rejection.NOT_READY))


@pytest.mark.parametrize("fault", [Fault.CLIENT, Fault.CONNECT, Fault.STALE, Fault.BACKPRESSURE])
def test_a_prompt_that_was_never_read_is_not_believed_to_be_held(fault):
    """D12: only what the failed attempt alone had added is dropped."""
    fleet = Fleet(1)
    fleet.dispatch(SYSTEM, "known").end()
    replica = next(iter(fleet.pool))
    before = replica.shadow.statistics()
    lease = fleet.dispatch(SYSTEM, "refused" * 500)
    fleet.router.observe_failure(lease, fault, fleet.now)
    lease.end()
    assert replica.shadow.statistics() == before


def test_a_hit_is_never_predicted_beyond_what_the_replica_can_hold():
    """D12: its KV bounds it, whatever the ratio of bytes to tokens has become."""
    fleet = Fleet(0)
    fleet.add("a", kv_tokens=300)
    fleet.router.ratios.of("m").observe(1000, 1000)
    fleet.dispatch(SYSTEM).end()
    decision = fleet.route(SYSTEM)
    assert decision.shadow_tokens <= min(300, decision.prompt_tokens)


def test_a_hint_brings_cold_prompts_together_and_never_overrides_a_hit():
    """`prompt_cache_key`: for prompts that nobody holds; who holds the prompt gets it whatever the hint says."""
    fleet = Fleet(8)

    def asked(opening: str, hint: bytes = b'"a"'):
        segments = [opening.encode() * 100, b"question"]
        return replace(fleet.query("x"), key=prefix_key("m", "alder", segments, home_hint=hint))

    cold = {fleet.router.route(asked(f"unlike {number} "), fleet.now).chosen for number in range(20)}
    assert len(cold) == 1
    other = next(name for name in ("r1", "r2") if name not in cold)
    fleet.pool.get(other).shadow.insert(asked("held ").key, fleet.now)
    for hint in (b'"a"', b'"b"', b""):
        assert fleet.router.route(asked("held ", hint), fleet.now).chosen == other


def test_a_hint_that_everybody_has_overloads_nobody():
    """One key for a whole product: its home takes its share and no more."""
    fleet = Fleet(4, seats=64)
    for number in range(80):
        key = prefix_key("m", "alder", [b"unlike %d " % number * 60, b"question"], home_hint=b'"product"')
        decision = fleet.router.route(replace(fleet.query("x"), key=key), fleet.now)
        fleet.pool.lease(decision, fleet.now).prefilled()
    assert max(replica.num_in_flight for replica in fleet.pool) <= 1.3 * 20


def test_a_replica_that_restarts_has_no_stale_hit():
    """From the call that learns of its new generation nothing is predicted there, also not by what was routed before."""
    fleet = Fleet(2)
    lease = fleet.dispatch(*session(1))
    home = lease.replica.name
    fleet.pool.upsert(spec(home, generation=5), fleet.now)
    fleet.pool.move(home, ReplicaState.READY)
    fleet.router.settled(fleet.route(*session(1)), lease, now=fleet.now, cached_tokens=0, prompt_tokens=1000)
    lease.end()
    decision = fleet.route(*session(1))
    assert [candidate.fused_tokens for candidate in decision.candidates] == [0, 0]
    assert fleet.pool.holders.depths(key_of(*session(1))) == {}
    assert fleet.router.home(fleet.query(*session(1))) in {"r1", "r2"}


def test_a_new_replica_of_a_fast_fleet_is_taken_to_be_as_fast_until_it_shows():
    """Else, assumed slow, it would never be asked; and what it shows is its own."""
    fleet = Fleet(1)
    for _ in range(30):
        decision = fleet.route("warm up " * 500, "x")
        with fleet.pool.lease(decision, fleet.now) as lease:
            fleet.pool.learn_ttft(lease, 2000, 0.01 + 2000 / 20_000)
            fleet.pool.learn_ttft(lease, 10, 0.01)
    fleet.add("r2")
    chosen = Counter(fleet.route(f"unseen {number} " * 100).chosen for number in range(40))
    assert min(chosen["r1"], chosen["r2"]) >= 8
    new = next(one for one in fleet.route("hello").candidates if one.replica == "r2")
    assert new.assumed == ("prefill", "base", "interference")
    assert new.base_ms < 20
    fleet.pool.get("r2").ttft.observe(2000, 10.0)
    assert fleet.route("unseen words " * 100).chosen == "r1"
    fleet.pool.remove("r1")
    fleet.pool.remove("r2")
    fleet.add("r3")
    assert fleet.pool.get("r3").ttft.base_ms == 30.0
