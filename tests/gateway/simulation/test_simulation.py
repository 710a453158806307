"""A fleet in virtual time: what happens when, what is counted, and that everything held is given back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.simulation.dispatch import GatewaySettings, TenantRule
from gateway.simulation.run import FleetSettings, RunSettings, build, simulate
from gateway.simulation.workload import Flood, PoissonStream, Shape, Spread, Trace
from policies.caps import CapLimits
from policies.fair_settings import FairSettings, LaneRule
from policies.lane import Lane
from tests.gateway.simulation.kit import COST, ask, engine, fleet, until

SHAPE = Shape(128, Spread(60, 0.6), Spread(12, 0.5), num_systems=2, mean_turns=3, num_open=6, max_prompt_tokens=600)


def assert_quiescent(simulation):
    """Nothing waits, nothing is held, anywhere."""
    assert simulation.num_in_flight == 0
    dispatch = simulation.dispatch
    assert (len(dispatch.queue), dispatch.queue.num_turns, dispatch.caps.num_holds) == (0, 0, 0)
    assert dispatch.router.pool.statistics().num_leases == 0
    assert "flights=0" in repr(simulation)
    assert "open=0" in repr(dispatch.service)
    lanes = dispatch.queue.queue.statistics().values()
    assert all(lane["waiting"] == lane["in_flight"] == 0 for lane in lanes)


def test_a_request_alone_takes_its_modelled_time():
    """Two hops, a prompt step, and a row for each further token."""
    found = simulate(fleet(), until(10.0, hop_s=0.5), [Trace([ask("a", at=1.0, answer=3)])])
    group = found.lanes[Lane.INTERACTIVE]
    assert group.ttft_s.p50 == pytest.approx(0.5 + COST.seconds(0, 64) + 0.5)
    assert group.itl_s.count == 2
    assert group.itl_s.p50 == pytest.approx(COST.seconds(1, 0))
    assert group.e2e_s.p50 == pytest.approx(1.0 + COST.seconds(0, 64) + 2 * COST.seconds(1, 0))
    assert (group.num_arrived, group.num_finished, group.output_tokens, group.uncached_tokens) == (1, 1, 3, 64)
    assert found.replicas[0].held_s == pytest.approx(group.e2e_s.p50)


def test_who_arrives_in_mid_step_waits_for_its_end():
    """Its time to first token has three parts, and they add up."""
    requests = [ask("a", prompt=((1, 200),), answer=1), ask("b", at=0.01, prompt=((2, 64),), answer=1)]
    found = simulate(fleet(), until(5.0), [Trace(requests)])
    group = found.lanes[Lane.INTERACTIVE]
    assert group.entry_s.mean == pytest.approx((COST.seconds(0, 200) - 0.01) / 2), "the first did not wait"
    assert group.ttft_s.mean == pytest.approx(group.queue_s.mean + group.entry_s.mean + group.read_s.mean)


def test_predicted_hits_are_real_hits():
    """The second turn finds the first on its replica, in the prediction as in the engine."""
    first = ask("a", prompt=((1, 512),), answer=2)
    second = ask("b", at=5.0, prompt=((1, 512), (2, 64)), answer=2)
    group = simulate(fleet(4), until(10.0), [Trace([first, second])]).lanes[Lane.INTERACTIVE]
    assert group.hit_tokens == 512
    assert group.predicted_hit_tokens == pytest.approx(512, abs=16)


def test_the_same_seeds_give_the_same_result():
    """To the last digit: comparisons rest on it."""

    def once():
        sources = [
            PoissonStream("alder", Lane.INTERACTIVE, SHAPE, rate_per_s=6.0, seed=1),
            Flood("birch", Lane.BULK, SHAPE, depth=8, seed=2),
        ]
        return simulate(fleet(2, seats=6, reserved=2), until(6.0, warm_up_s=1.0), sources)

    assert once() == once()


def test_seats_bound_what_is_in_flight_and_order_is_by_lane():
    """One seat: interactive overtakes bulk that came before it."""
    requests = [
        ask("first", lane=Lane.BULK),
        ask("bulk", at=0.001, lane=Lane.BULK, prompt=((2, 64),)),
        ask("person", at=0.002, prompt=((3, 64),)),
    ]
    found = simulate(fleet(seats=1), until(10.0), [Trace(requests)])
    bulk, person = found.lanes[Lane.BULK], found.lanes[Lane.INTERACTIVE]
    assert person.num_finished == 1
    assert bulk.num_finished == 2
    assert person.ttft_s.p99 < bulk.ttft_s.p99


def test_a_full_lane_refuses():
    """A refused request is counted and leaves nothing behind."""
    requests = [ask(str(number), at=number * 0.001) for number in range(4)]
    lanes = {lane: LaneRule(bound=1) for lane in Lane}
    simulation = build(fleet(seats=1), until(20.0), [Trace(requests)], GatewaySettings(FairSettings(lanes=lanes)))
    simulation.run_until(20.0)
    group = simulation.result().lanes[Lane.INTERACTIVE]
    assert (group.num_arrived, group.num_refused, group.num_finished) == (4, 2, 2)
    assert_quiescent(simulation)


def test_a_cap_holds_on_every_replica_and_lets_others_pass():
    """The capped tenant waits; the other does not wait behind it."""
    caps = {Lane.INTERACTIVE: CapLimits(per_replica=1)}
    gateway = GatewaySettings(tenants={"alder": TenantRule(caps=caps)})
    flood = [ask(f"a{number}", prompt=((number, 64),), answer=20) for number in range(6)]
    other = ask("b", at=0.01, tenant="birch", prompt=((99, 64),))
    found = simulate(fleet(seats=4), until(20.0), [Trace([*flood, other])], gateway)
    assert found.tenants["birch", Lane.INTERACTIVE].queue_s.p99 == 0.0
    assert found.tenants["alder", Lane.INTERACTIVE].num_finished == 6
    one_by_one = COST.seconds(0, 64) + 19 * COST.seconds(1, 0)
    assert found.tenants["alder", Lane.INTERACTIVE].queue_s.p99 > 4 * one_by_one


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 0.4), st.sampled_from(Lane), st.sampled_from(["alder", "birch"]), st.integers(1, 300),
            st.integers(1, 8), st.none() | st.floats(0.0, 0.6),
        ),
        max_size=16,
    ),
)  # fmt: skip
def test_every_ending_gives_everything_back(requests):
    """Finished, left in the queue, before the first token and in mid-stream: nothing stays held or counted twice."""
    asked = [
        ask(
            str(number),
            at=at,
            lane=lane,
            tenant=tenant,
            prompt=((number % 3, length),),
            answer=answer,
            patience_s=patience,
        )
        for number, (at, lane, tenant, length, answer, patience) in enumerate(requests)
    ]
    simulation = build(fleet(2, seats=2), until(1000.0, hop_s=0.003), [Trace(asked)])
    simulation.run_until(1000.0)
    assert_quiescent(simulation)
    groups = simulation.result().lanes.values()
    assert sum(group.num_arrived for group in groups) == len(asked)
    assert sum(group.num_finished + group.num_left for group in groups) == len(asked)
    for member in simulation._members.values():
        member.worker.scheduler.check_integrity()
        assert not member.worker.scheduler.has_work
        assert not member.occupancy.is_held


def test_settings_that_cannot_be_are_refused():
    """A run that measures nothing must not print zeros."""
    for wrong in ({"num_replicas": 0}, {"seats": 0}, {"speeds": (1.0, 2.0)}, {"speeds": (0.0,)}):
        with pytest.raises(ValueError):
            FleetSettings(**({"num_replicas": 1, "engine": engine(), "seats": 1} | wrong))
    for wrong in ({"warm_up_s": 10.0}, {"tail_s": 10.0}, {"tail_s": -1.0}, {"hop_s": -1.0}):
        with pytest.raises(ValueError):
            RunSettings(10.0, **wrong)


def test_a_slower_replica_takes_longer():
    """The simulator's speeds may differ from what the router believes."""
    slow = simulate(fleet(speeds=(2.0,)), until(5.0), [Trace([ask("a")])]).lanes[Lane.INTERACTIVE]
    usual = simulate(fleet(), until(5.0), [Trace([ask("a")])]).lanes[Lane.INTERACTIVE]
    assert slow.e2e_s.p50 == pytest.approx(2 * usual.e2e_s.p50)
