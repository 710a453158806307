"""What headers ask for, bounded by the key and by their form."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.classify import MAX_DEADLINE_MS, classify, client_request_id, read_deadline, read_traceparent
from gateway.errors import ClientError
from gateway.outcome import Outcome
from gateway.request import Surface, read
from gateway.sink import Incoming
from policies.lane import Lane
from policies.tenant import Limits, Principal, Role, Tenant

TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def incoming(*headers, arrived_at=100.0):
    """A request with these headers."""
    return Incoming(Surface.CHAT.value, list(headers), b"", arrived_at)


def request(**fields):
    """A chat request."""
    return read(
        Surface.CHAT, json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}).encode()
    )


def principal(max_lane=Lane.INTERACTIVE, default_lane=Lane.STANDARD):
    """A key with these lanes."""
    tenant = Tenant("proj", "org", "0" * 32, Limits())
    return Principal(tenant, "key", "name", frozenset({Role.SERVICE}), max_lane, default_lane)


@pytest.mark.parametrize(
    ("header", "tier", "lane"),
    [
        (None, None, Lane.STANDARD),
        (None, "auto", Lane.STANDARD),
        (None, "flex", Lane.BULK),
        (None, "priority", Lane.INTERACTIVE),
        (b"bulk", None, Lane.BULK),
        (b" BULK ", "priority", Lane.BULK),
        (b"interactive", "flex", Lane.INTERACTIVE),
    ],
)
def test_the_header_wins_then_the_tier_then_the_key(header, tier, lane):
    """A caller's label is a wish."""
    headers = [] if header is None else [(b"x-warmlane-lane", header)]
    fields = {} if tier is None else {"service_tier": tier}
    assert classify(incoming(*headers), request(**fields).tier_lane, principal()) is lane


@pytest.mark.parametrize("asked", list(Lane))
@pytest.mark.parametrize("highest", list(Lane))
def test_a_lane_above_the_keys_own_is_forbidden(asked, highest):
    """403, and the record says so."""
    call = incoming((b"x-warmlane-lane", asked.value.encode()))
    if asked.rank >= highest.rank:
        assert classify(call, None, principal(max_lane=highest)) is asked
        return
    with pytest.raises(ClientError) as caught:
        classify(call, None, principal(max_lane=highest))
    problem = caught.value.problem
    assert (problem.status, problem.code, problem.outcome) == (403, "lane_not_allowed", Outcome.FORBIDDEN)


def test_a_tier_above_the_keys_lane_is_forbidden_too():
    """The body is no way round the header's rule."""
    with pytest.raises(ClientError):
        classify(incoming(), request(service_tier="priority").tier_lane, principal(max_lane=Lane.BULK))


@pytest.mark.parametrize("value", [b"", b"fast", b"interactive,bulk", b"\xff", b"0"])
def test_an_unknown_lane_is_a_client_error(value):
    """With the header's name."""
    with pytest.raises(ClientError) as caught:
        classify(incoming((b"x-warmlane-lane", value)), None, principal())
    assert caught.value.problem.param == "x-warmlane-lane"


@pytest.mark.parametrize(("value", "deadline"), [(b"1", 100.001), (b"2500", 102.5), (b"%d" % MAX_DEADLINE_MS, 86500.0)])
def test_a_deadline_counts_from_arrival(value, deadline):
    """Time spent here is part of it."""
    assert read_deadline(incoming((b"x-warmlane-deadline-ms", value))) == pytest.approx(deadline)
    assert read_deadline(incoming()) is None


@pytest.mark.parametrize(
    "value",
    [b"", b"0", b"-1", b"1.5", b"1e3", b"%d" % (MAX_DEADLINE_MS + 1), b"9" * 5000, "²".encode("latin-1"), b"\xd9\xa3"],
)
def test_a_deadline_that_is_none_is_a_client_error(value):
    """Whatever a header can hold."""
    with pytest.raises(ClientError) as caught:
        read_deadline(incoming((b"x-warmlane-deadline-ms", value)))
    assert caught.value.problem.param == "x-warmlane-deadline-ms"


@pytest.mark.parametrize(
    ("headers", "kept"),
    [
        ([], None),
        ([b"abc-123"], "abc-123"),
        ([b"x" * 128], "x" * 128),
        ([b"x" * 129], None),
        ([b""], None),
        ([b"a b"], None),
        ([b"a\r\nb"], None),
        ([b"\x1b[31m"], None),
        ([b"\xc3\xa9"], None),
        ([b"a", b"b"], None),
    ],
)
def test_a_callers_id_is_kept_only_if_it_is_short_and_harmless(headers, kept):
    """P43: it goes into a log line."""
    assert client_request_id(incoming(*((b"x-request-id", value) for value in headers))) == kept


@pytest.mark.parametrize(
    ("headers", "kept"),
    [
        ([], False),
        ([TRACE], True),
        ([TRACE.upper()], False),
        ([b"ff" + TRACE[2:]], False),
        ([TRACE + b"-x"], False),
        ([TRACE[:-1]], False),
        ([b"00-" + b"0" * 32 + TRACE[35:]], False),
        ([TRACE[:36] + b"0" * 16 + b"-01"], False),
        ([TRACE, TRACE], False),
    ],
)
def test_a_trace_is_continued_only_if_it_is_well_formed(headers, kept):
    """P39: malformed input never fails a request."""
    found = read_traceparent(incoming(*((b"traceparent", value) for value in headers)))
    assert found == (TRACE.decode() if kept else None)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=140))
def test_any_header_value_is_read_or_a_client_error(value):
    """Nothing else comes out."""
    names = (b"x-warmlane-lane", b"x-warmlane-deadline-ms", b"x-request-id", b"traceparent")
    call = incoming(*((name, value) for name in names))
    kept = client_request_id(call)
    assert kept is None or kept.isprintable()
    assert read_traceparent(call) is None
    for reading in (lambda: read_deadline(call), lambda: classify(call, None, principal())):
        try:
            reading()
        except ClientError:
            continue
