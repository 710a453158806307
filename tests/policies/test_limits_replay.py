"""Which requests of the past other limits would have refused: by the gateway's own rules, in the order they came."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.lane import Lane
from policies.ledger import LedgerRow
from policies.limits_replay import LONGEST_S, LimitsReplay, primed_from
from policies.tenant import Limits, Tenant

NOON = 1_796_040_000.0


def row(number, second=None, **fields):
    """A request of proj_a that began `second` seconds after noon and took one."""
    started_at = NOON + (number if second is None else second)
    whole = {
        "project": "proj_a",
        "model": "small-a",
        "lane": "interactive",
        "outcome": "finished",
        "attempts": 1,
        "ended_at": started_at + 1,
        "prompt_tokens": 8,
        "completion_tokens": 2,
        "charged_tokens": 10,
        "reserved_tokens": 20,
        "cost_nanousd": 100,
        **fields,
    }
    return LedgerRow(
        request_id=f"req_{number:04}",
        started_at=started_at,
        organization="org_a",
        key="key_a",
        surface="/v1/completions",
        status=200,
        **whole,
    )


def replayed(rows, limits=None, organization=None, others=None):
    """What these limits would have done to the rows of proj_a."""
    organization_limits = organization or Limits()
    tenants = {
        project: Tenant(project, "org_a", "", own or Limits(), organization_limits)
        for project, own in {"proj_a": limits, **(others or {})}.items()
    }
    replay = LimitsReplay(tenants, "proj_a")
    replay.take(rows)
    return replay.found


def test_without_limits_nothing_is_refused():
    """Every request that was served then would be again."""
    found = replayed([row(number) for number in range(10)])
    assert (found.requests, found.refused_now, found.by_limit) == (10, 0, {})


def test_requests_a_minute_slide():
    """Three a minute: of ten in ten seconds three, and after a minute three more."""
    found = replayed([row(n) for n in range(10)] + [row(100 + n, 70 + n) for n in range(4)], Limits(rpm=3))
    assert (found.requests, found.refused_now) == (14, 8)
    assert list(found.by_limit) == ["project.rpm"]
    assert (found.by_limit["project.rpm"].requests, found.by_limit["project.rpm"].first_at) == (8, NOON + 3)


def test_tokens_are_held_as_expected_and_charged_as_used():
    """Expected are 20 a request, used 10: two beside each other fit into 40, three of them do not."""
    together = [row(n, 0.0, ended_at=NOON + 30) for n in range(3)]
    assert replayed(together, Limits(tpm=40)).by_limit["project.tpm"].requests == 1
    one_by_one = [row(n, 2 * n) for n in range(3)]
    assert replayed(one_by_one, Limits(tpm=40)).refused_now == 0


def test_days_and_months_hold_what_was_used():
    """Money as the prices of that time had it."""
    rows = [row(n, 10 * n) for n in range(10)]
    assert replayed(rows, Limits(tokens_per_day=50)).by_limit["project.tokens_per_day"].requests == 5
    assert replayed(rows, Limits(usd_per_month=5e-7)).by_limit["project.usd_per_month"].requests == 5


def test_requests_in_flight_are_those_that_had_not_ended():
    """By the times of the ledger."""
    rows = [row(n, n, ended_at=NOON + n + 2.5) for n in range(6)]
    found = replayed(rows, Limits(concurrency={Lane.INTERACTIVE: 2}))
    assert found.by_limit["project.concurrency"].requests == 2


def test_models_and_lanes_are_named_too():
    """They refuse whatever the amount."""
    found = replayed([row(1, model="large"), row(2)], Limits(models=frozenset({"small-a"}), max_lane=Lane.STANDARD))
    assert {limit: one.requests for limit, one in found.by_limit.items()} == {
        "project.models": 1,
        "project.max_lane": 1,
    }
    found = replayed([row(1)], Limits(surfaces=frozenset({"/v1/chat/completions"})))
    assert set(found.by_limit) == {"project.surfaces"}


def test_a_model_may_be_allowed_by_an_alias():
    """As the gateway takes it; the ledger has the real name."""
    tenant = Tenant("proj_a", "org_a", "", Limits(models=frozenset({"fast"})), Limits())
    for aliases, refused in (({"small-a": frozenset({"fast", "quick"})}, 0), ({"other": frozenset({"fast"})}, 1)):
        replay = LimitsReplay({"proj_a": tenant}, "proj_a", aliases)
        replay.take([row(1)])
        assert replay.found.refused_now == refused


def test_other_projects_use_up_what_the_organisation_shares():
    """But only this project's refusals are told."""
    rows = [row(0, project="proj_b"), row(1, project="proj_b"), row(2), row(3), row(4, project="proj_c")]
    found = replayed(rows, organization=Limits(rpm=3), others={"proj_b": None})
    assert (found.requests, found.refused_now) == (2, 1)
    assert list(found.by_limit) == ["organization.rpm"]


def test_what_was_refused_then_is_tried_again():
    """A wider limit would have served it."""
    rows = [row(0), row(1, outcome="refused", attempts=0, prompt_tokens=None, completion_tokens=None, charged_tokens=0)]
    wide = replayed(rows, Limits(rpm=2))
    assert (wide.requests, wide.refused_then, wide.refused_now) == (2, 1, 0)
    narrow = replayed(rows, Limits(rpm=1))
    assert (narrow.refused_now, narrow.newly_refused) == (1, 0)


def test_a_refusal_whose_cost_was_never_known_is_no_unpriced_model():
    """It was refused before its price was looked at."""
    rows = [row(0, outcome="refused", attempts=0, cost_nanousd=None, reserved_tokens=None, charged_tokens=0)]
    assert replayed(rows, Limits(usd_per_month=1)).refused_now == 0
    unpriced = replayed([row(0, cost_nanousd=None)], Limits(usd_per_month=1))
    assert list(unpriced.by_limit) == ["project.model_not_priced"]


def test_what_never_was_a_request_is_passed_over():
    """Malformed ones and those that found no replica left every counter as it was."""
    assert replayed([row(0, outcome="client_error", attempts=0), row(1, outcome="shed", attempts=0)]).requests == 0


def test_a_shadow_is_tried_as_if_it_were_enforced():
    """What it would have refused is the question."""
    assert replayed([row(0), row(1)], Limits(rpm=1, shadow=True)).refused_now == 1


LANES = dict.fromkeys(Lane, 2)
EARLIER = {  # limits, and what came before: so many requests, one after the other, until a second before noon
    "rpm": (Limits(rpm=3), 2, 1.0),
    "tpm": (Limits(tpm=30), 2, 1.0),
    "tokens_per_day": (Limits(tokens_per_day=30), 2, 3600.0),
    "usd_per_month": (Limits(usd_per_month=3e-7), 2, 10 * 86_400.0),
}


def primed(before, rows, limits=None, above=None):
    """What these limits would have done to the rows of proj_a after those before."""
    tenant = Tenant("proj_a", "org_a", "", limits or Limits(), above or Limits())
    replay = LimitsReplay({"proj_a": tenant}, "proj_a")
    replay.prime(before)
    replay.take(rows)
    return replay.found


@pytest.mark.parametrize("scope", ["project", "organization"])
@pytest.mark.parametrize("name", EARLIER)
def test_windows_hold_what_was_used_before_the_period(name, scope):
    """Two of three are used when it begins: the second request is refused, not the fourth; earlier ones are not told."""
    limits, num, every_s = EARLIER[name]
    before = [row(n, -1 - every_s * (num - n), ended_at=NOON - 1) for n in range(num)]
    at = {"reserved_tokens": 10, "ended_at": NOON + 0.5}
    found = primed(before, [row(10, 0, **at), row(11, 0.6)], **{("limits" if scope == "project" else "above"): limits})
    assert (found.requests, found.refused_now) == (2, 1)
    assert list(found.by_limit) == [f"{scope}.{name}"]
    assert found.by_limit[f"{scope}.{name}"].first_at == NOON + 0.6


def test_what_was_in_flight_when_the_period_began_is_counted_until_it_ended():
    """A cap of two: one from before, one of the period, the next has to wait."""
    before = [row(0, -50, ended_at=NOON + 5)]
    rows = [row(1, 1, ended_at=NOON + 9), row(2, 2), row(3, 6)]
    found = primed(before, rows, Limits(concurrency=LANES))
    assert found.by_limit["project.concurrency"].first_at == NOON + 2
    assert found.refused_now == 1


def test_what_came_before_is_counted_as_it_was_whatever_the_limits():
    """It was served; also without a price, and beyond the limits that are tried. What was refused then is nothing."""
    before = [row(n, -20 + n, cost_nanousd=None) for n in range(9)]
    before.append(row(9, -10, outcome="refused", attempts=0, reserved_tokens=1000, charged_tokens=0))
    found = primed(before, [row(10, 0)], Limits(tokens_per_day=110, usd_per_month=1e-6))
    assert found.refused_now == 0
    assert primed(before, [row(10, 0)], Limits(tokens_per_day=90)).refused_now == 1


def test_only_what_may_still_count_is_looked_for():
    """The last minute, or the beginning of the day or month in each level's own time zone, or an hour of requests."""
    noon = int(NOON)  # of 30 November 2026, UTC

    def begin(own, above=None):
        return primed_from([Tenant("p", "o", "", own, above or Limits())], noon)

    assert begin(Limits(rpm=3)) == noon - 61
    assert begin(Limits(concurrency=LANES)) == noon - LONGEST_S
    assert begin(Limits(tokens_per_day=1)) == noon - 12 * 3600
    assert begin(Limits(tokens_per_day=1, time_zone="Asia/Tokyo")) == noon - 21 * 3600
    assert begin(Limits(), Limits(usd_per_month=1)) == noon - 12 * 3600 - 29 * 86_400
    assert primed_from([], 5) == 0


@settings(max_examples=40, deadline=None)
@given(
    seconds=st.lists(st.floats(0, 300), max_size=40),
    rpm=st.integers(0, 10),
    cut=st.integers(0, 40),
)
def test_requests_a_minute_against_counting_them(seconds, rpm, cut):
    """A slow count of what the last 60 whole seconds and this one admitted; in one piece or in two."""
    rows = sorted((row(n, second) for n, second in enumerate(seconds)), key=lambda one: one.started_at)
    admitted, refused = [], 0
    for one in rows:
        second = int(one.started_at)
        if sum(second - 60 <= earlier for earlier in admitted) >= rpm:
            refused += 1
        else:
            admitted.append(second)
    tenant = Tenant("proj_a", "org_a", "", Limits(rpm=rpm))
    replay = LimitsReplay({"proj_a": replace(tenant)}, "proj_a")
    replay.take(rows[:cut])
    replay.take(rows[cut:])
    assert replay.found.refused_now == refused


@pytest.mark.parametrize("lane", ["", "unknown"])
def test_a_row_without_a_lane_counts_in_the_default_one(lane):
    """It was refused before it was classified."""
    found = replayed([row(0, lane=lane)], Limits(concurrency={Lane.INTERACTIVE: 0}))
    assert found.refused_now == 1
