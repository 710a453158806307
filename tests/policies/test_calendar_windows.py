"""Days and months by the wall clock, against a slow reference that walks along the time line."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policies.calendar_windows import day_window, is_time_zone, month_window

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/St_Johns",  # once set its clocks back at 00:01, so a date was shown twice
    "America/Sao_Paulo",  # once set its clocks forward at midnight, so a day had none
    "America/Havana",  # sets them back at 01:00, so midnight is there twice
    "Asia/Kathmandu",  # 5:45 from UTC
    "Australia/Lord_Howe",  # changes by half an hour
    "Pacific/Apia",  # left out a whole day in 2011
    "Pacific/Chatham",
    "Africa/Cairo",
    "Asia/Gaza",
]


def unix(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp())


def shown(second: float, zone: str) -> datetime:
    return datetime.fromtimestamp(second, ZoneInfo(zone))


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("UTC", "2026-03-29", 24),
        ("Europe/Berlin", "2026-03-29", 23),
        ("Europe/Berlin", "2026-10-25", 25),
        ("America/New_York", "2026-03-08", 23),
        ("America/Sao_Paulo", "2018-11-04", 23),  # begins at 01:00
        ("America/Sao_Paulo", "2018-02-17", 25),  # its last hour is there twice
        ("America/Havana", "2026-11-01", 25),  # its first hour is there twice
        ("Australia/Lord_Howe", "2026-10-04", 23.5),
        ("Africa/Cairo", "2026-04-24", 23),
        ("Asia/Kathmandu", "2026-06-01", 24),
    ],
)
def test_a_day_has_the_hours_of_its_wall_clock(zone, day, hours):
    """A budget of a day must not end an hour early or begin an hour late when the clocks change."""
    window = day_window(unix(f"{day}T12:00", zone), zone)
    assert window.ends_at - window.starts_at == hours * 3600
    assert shown(window.starts_at, zone).date().isoformat() == day
    assert shown(window.starts_at - 1, zone).date().isoformat() < day
    assert shown(window.ends_at, zone).date().isoformat() > day


@pytest.mark.parametrize(
    ("moment", "starts", "ends"),
    [
        ("2028-02-29T23:59:59", "2028-02-29", "2028-03-01"),
        ("2028-02-28T00:00:00", "2028-02-28", "2028-02-29"),
        ("2026-02-28T12:00:00", "2026-02-28", "2026-03-01"),
        ("2026-12-31T12:00:00", "2026-12-31", "2027-01-01"),
        ("2100-02-28T12:00:00", "2100-02-28", "2100-03-01"),
    ],
)
def test_leap_days_are_days(moment, starts, ends):
    """29 February is there in leap years alone."""
    assert day_window(unix(moment), "UTC") == (unix(f"{starts}T00:00"), unix(f"{ends}T00:00"))


@pytest.mark.parametrize(
    ("moment", "starts", "ends"),
    [
        ("2028-02-29T23:59", "2028-02-01", "2028-03-01"),
        ("2026-01-31T12:00", "2026-01-01", "2026-02-01"),
        ("2026-12-01T00:00", "2026-12-01", "2027-01-01"),
        ("2026-03-31T23:59", "2026-03-01", "2026-04-01"),  # 743 hours in Berlin
        ("2026-10-31T23:59", "2026-10-01", "2026-11-01"),  # 745
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Pacific/Apia"])
def test_a_month_begins_on_its_first_midnight(zone, moment, starts, ends):
    """Whatever its length, and whether the clocks change in it."""
    window = month_window(unix(moment, zone), zone)
    assert window == (unix(f"{starts}T00:00", zone), unix(f"{ends}T00:00", zone))


def test_a_day_that_was_left_out_belongs_to_nobody():
    """Samoa went from 29 to 31 December 2011: the 29th ends where the 31st begins."""
    before = day_window(unix("2011-12-29T12:00", "Pacific/Apia"), "Pacific/Apia")
    after = day_window(unix("2011-12-31T12:00", "Pacific/Apia"), "Pacific/Apia")
    assert before.ends_at == after.starts_at
    assert after.ends_at - after.starts_at == 86400


def test_a_date_that_is_shown_twice_is_one_day():
    """At 00:01 the clock went back to 23:01: the new day had begun, and nobody gets the old one's allowance again."""
    zone = "America/St_Johns"
    again = unix("2006-10-29T03:00")  # shows 23:30 of the 28th, for the second time
    assert shown(again, zone).day == 28
    window = day_window(again, zone)
    assert window.starts_at <= again < window.ends_at
    assert shown(window.starts_at, zone).isoformat() == "2006-10-29T00:00:00-02:30"


def next_day(start: int, zone: str) -> int:
    """The slow reference: the first minute, walking on, that shows a later date than any before it."""
    latest, second = shown(start, zone).date(), start
    while True:
        second += 60
        if shown(second, zone).date() > latest:
            return second


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(ZONES), st.integers(unix("1990-01-01"), unix("2037-12-31")))
@example("America/St_Johns", unix("2006-10-28T12:00"))
@example("Pacific/Apia", unix("2011-12-30T02:00"))
@example("Asia/Gaza", unix("2026-03-27T22:00"))
def test_days_are_those_of_a_slow_reference(zone, second):
    """The window of any instant begins where the reference says that it begins, and ends where the next begins."""
    window = day_window(second, zone)
    assert window.starts_at <= second < window.ends_at
    assert window.ends_at == next_day(window.starts_at, zone)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(ZONES), st.integers(unix("1971-01-01"), unix("2150-01-01")), st.sampled_from(["day", "month"]))
def test_windows_follow_each_other_without_gap_or_overlap(zone, second, kind):
    """Every instant is in exactly one, also beside its borders, whichever way the clock is read."""
    window_of = day_window if kind == "day" else month_window
    window = window_of(second, zone)
    assert window.starts_at <= second < window.ends_at
    assert window_of(window.starts_at, zone) == window
    assert window_of(window.ends_at - 0.5, zone) == window
    assert window_of(window.ends_at, zone).starts_at == window.ends_at
    assert window_of(window.starts_at - 1, zone).ends_at == window.starts_at
    if kind == "month":
        assert shown(window.starts_at, zone).day == 1
        assert timedelta(days=27) < timedelta(seconds=window.ends_at - window.starts_at) < timedelta(days=32)


@pytest.mark.parametrize("name", ZONES)
def test_zones_are_known(name):
    """By their IANA names."""
    assert is_time_zone(name)


@pytest.mark.parametrize(
    "name", ["", "Europe", "Mars/Olympus", "../UTC", "/etc/passwd", "Europe/Berlin/", "UTC\n", "a" * 65, "Europe/\x00"]
)
def test_what_is_no_zone_is_told(name):
    """A path must not be read, and a folder is no zone."""
    assert not is_time_zone(name)


@pytest.mark.parametrize(
    "name", ["localtime", "posixrules", "Factory", "right/UTC", "right/Europe/Berlin", "posix/UTC"]
)
def test_what_can_be_read_as_a_zone_and_names_none_is_refused(name):
    """Such files lie beside the zones: another machine shows another time by them, or one off by leap seconds."""
    assert not is_time_zone(name)


def test_every_zone_that_this_machine_lists_is_known():
    """Nothing that has an IANA name is lost to the refusals."""
    listed = {one for one in available_timezones() if one not in {"localtime", "posixrules", "Factory"}}
    assert len(listed) > 300
    assert {one for one in listed if not is_time_zone(one)} == set()
