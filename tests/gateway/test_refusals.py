"""What an engine's status, its advice on waiting and its error events mean."""

import email.utils
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.contract import Fault
from gateway.refusals import in_stream_error, refusal, retry_after_s


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (429, Fault.BACKPRESSURE),
        (503, Fault.BACKPRESSURE),
        (529, Fault.BACKPRESSURE),
        (400, Fault.CLIENT),
        (413, Fault.CLIENT),
        (422, Fault.CLIENT),
        (401, Fault.STATUS),
        (403, Fault.STATUS),
        (404, Fault.STATUS),
        (408, Fault.STATUS),
        (500, Fault.STATUS),
        (502, Fault.STATUS),
        (302, Fault.STATUS),
        (204, Fault.STATUS),
    ],
)
def test_each_status_has_one_meaning(status, fault):
    """Busy is not broken, and our own wrong key or model name is not the client's fault."""
    error = refusal(status, [], b"why")
    assert (error.fault, error.status, error.body) == (fault, status, b"why")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"30", 30),
        (b"0", 0),
        (b" 5 ", 5),
        (b"007", 7),
        (b"", None),
        (b"soon", None),
        (b"-5", None),
        (b"1.5", None),
        ("²".encode("latin-1"), None),
        ("٣".encode(), None),
        (b"\xff\xfe", None),
        (b"Wed, 99 Foo 2020 00:00:00 GMT", None),
        (b"Wed, 21 Oct 2015 07:28:00 GMT", 0),
    ],
)
def test_advice_on_waiting_is_read_or_ignored(value, seconds):
    """Seconds or a date; a date in the past means now, nonsense means nothing."""
    assert retry_after_s([(b"date", b"x"), (b"retry-after", value)]) == seconds


def test_a_date_is_converted_to_seconds():
    """P19: the client gets seconds whatever the engine said."""
    value = email.utils.formatdate(time.time() + 120, usegmt=True).encode()
    assert retry_after_s([(b"retry-after", value)]) == pytest.approx(120, abs=2)


def test_no_header_is_no_advice():
    """Then the default wait holds."""
    assert retry_after_s([]) is None
    assert refusal(429, [], b"").retry_after_s is None
    assert refusal(429, [(b"retry-after", b"7")], b"").retry_after_s == 7


@settings(deadline=None, max_examples=300)
@given(
    st.binary(max_size=40)
    | st.from_regex(r"\A(Mon, )?[0-9]{1,3} (Jan|Feb|Foo) [0-9]{1,12} [0-9:]{0,9} ?([A-Z+-][0-9A-Z]{0,6})?\Z").map(
        lambda text: text.encode("latin-1", "replace")
    )
)
def test_any_header_value_is_harmless(value):
    """It is read in a callback, where nothing may be raised."""
    seconds = retry_after_s([(b"retry-after", value)])
    assert seconds is None or seconds >= 0


@pytest.mark.parametrize(
    ("error", "fault", "status"),
    [
        ({"code": 429, "message": "busy"}, Fault.BACKPRESSURE, 429),
        ({"code": 400, "message": "too long"}, Fault.CLIENT, 400),
        ({"code": 500}, Fault.STATUS, 500),
        ({"code": "server_error"}, Fault.STATUS, 500),
        ({"code": 200}, Fault.STATUS, 500),
        ({"code": 9999}, Fault.STATUS, 500),
        ({"code": True}, Fault.STATUS, 500),
        ({}, Fault.STATUS, 500),
        ("out of memory", Fault.STATUS, 500),
        (None, Fault.STATUS, 500),
        ([1], Fault.STATUS, 500),
    ],
)
def test_an_error_in_the_stream_says_what_kind_it_is_by_its_code(error, fault, status):
    """Anything unclear is the engine's failure."""
    found = in_stream_error(json.dumps({"error": error}).encode())
    assert (found.fault, found.status) == (fault, status)


def test_an_unreadable_error_event_is_the_engines_failure():
    """It announced an error, whatever it is."""
    assert in_stream_error(b"[" * 100_000).fault is Fault.STATUS
