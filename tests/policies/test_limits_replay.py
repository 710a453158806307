"""Which requests of the past other limits would have refused: by the gateway's own rules, in the order they came."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.lane import Lane
from policies.ledger import LedgerRow
from policies.limits_replay import LimitsReplay
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
    assert replayed(rows, Limits(tokens_per_day=50)).by_limit["project.tokens_per_day"].requests == 6
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
