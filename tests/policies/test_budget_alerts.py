"""Which thresholds of a budget are reached, and that every gateway names them alike."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.budget_alerts import THRESHOLDS, Budgets, reached
from policies.meters import Counted, Meter
from policies.tenant import Limits, Tenant

DAY = Meter("project:p", Counted.DAY_TOKENS, 1000, 86400, 172800)


@pytest.mark.parametrize(
    ("used", "thresholds"), [(0, []), (499, []), (500, [50]), (799, [50]), (800, [50, 80]), (1000, [50, 80, 100]), (5000, [50, 80, 100])]
)  # fmt: skip
def test_a_threshold_is_reached_when_that_much_is_used(used, thresholds):
    """Exactly at it, not only above."""
    assert [one.threshold for one in reached(DAY, used)] == thresholds


def test_a_budget_of_nothing_alerts_nobody():
    """It is a door that was shut on purpose."""
    assert reached(replace(DAY, limit=0), 0) == ()


@given(limit=st.integers(1, 10**15), used=st.integers(0, 10**16))
def test_thresholds_come_in_order_and_never_too_early(limit, used):
    """In whole numbers, so that no rounding decides."""
    found = [one.threshold for one in reached(replace(DAY, limit=limit), used)]
    assert found == [one for one in THRESHOLDS if used * 100 >= one * limit]


def test_an_alert_has_one_name_per_window_and_threshold():
    """Whatever the limit and the count are at the gateway that asks."""
    first = reached(DAY, 500)[0]
    assert reached(replace(DAY, limit=10), 900)[0].id == first.id
    others = [reached(DAY, 800)[1], reached(replace(DAY, starts_at=172800, ends_at=259200), 500)[0],
              reached(replace(DAY, of="organization:p"), 500)[0], reached(replace(DAY, counted=Counted.MONTH_MONEY), 500)[0]]  # fmt: skip
    assert len({first.id, *(one.id for one in others)}) == 5
    assert (first.subject_id, first.is_of_project) == ("p", True)


def test_every_calendar_budget_is_looked_at_once():
    """Of projects and of the organisation they share; a minute's limits are none."""
    both = Limits(tokens_per_day=5, usd_per_month=1.0, tpm=7, rpm=8)
    tenants = [Tenant(f"p{n}", "o", "00", both, Limits(usd_per_month=2.0)) for n in range(2)]
    tenants.append(Tenant("free", "o2", "00", Limits(tpm=5), Limits()))
    found = [(one.of, one.counted.value, one.limit) for one in Budgets().meters(tenants, 1_700_000_000)]
    assert sorted(found) == [
        ("organization:o", "usd_per_month", 2_000_000_000),
        ("project:p0", "tokens_per_day", 5), ("project:p0", "usd_per_month", 1_000_000_000),
        ("project:p1", "tokens_per_day", 5), ("project:p1", "usd_per_month", 1_000_000_000),
    ]  # fmt: skip


def test_a_changed_limit_and_another_window_are_seen_at_once():
    """What is kept ready is only kept as long as it is right."""
    budgets, at = Budgets(), 1_700_000_000
    first = Tenant("p", "o", "00", Limits(tokens_per_day=5))
    [before] = budgets.meters([first], at)
    [again] = budgets.meters([first], at)
    assert again is before
    [changed] = budgets.meters([Tenant("p", "o", "00", Limits(tokens_per_day=6))], at)
    assert (changed.limit, changed.key) == (6, before.key)
    [tomorrow] = budgets.meters([first], at + 86400)
    assert tomorrow.starts_at == before.ends_at
    assert list(budgets.meters([], at)) == []
    assert budgets._levels == {}
