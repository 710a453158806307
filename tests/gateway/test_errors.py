"""What a client is told when something goes wrong: OpenAI's shape, true waits, the engine's words but not its address."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.contract import Fault, ReplicaError
from gateway.errors import BUG, MAX_RETRY_AFTER_S, STOPPING, ClientError, Problem, Refused, of_replica, whole_seconds
from gateway.outcome import Outcome


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, None),
        (float("nan"), None),
        (0.0, 1),
        (-5.0, 1),
        (0.2, 1),
        (1.0, 1),
        (1.01, 2),
        (30, 30),
        (3600.0, 3600),
        (3600.5, 3600),
        (float("inf"), 3600),
        (float("-inf"), 1),
        (1e300, 3600),
    ],
)
def test_waits_are_whole_seconds_within_bounds(seconds, shown):
    """P19: `retry-after` is an integer that a client can obey."""
    assert whole_seconds(seconds) == shown


@given(st.floats(allow_nan=False))
def test_a_wait_is_never_told_too_short(seconds):
    """Whoever comes back after it must not be too early, up to the maximum."""
    shown = whole_seconds(seconds)
    assert 1 <= shown <= MAX_RETRY_AFTER_S
    assert shown >= min(seconds, MAX_RETRY_AFTER_S)


def test_a_problem_is_openais_body():
    """What client libraries parse."""
    problem = Problem(400, 'not "good"\n', "invalid_request_error", "bad", "n")
    assert json.loads(problem.body()) == {
        "error": {"message": 'not "good"\n', "type": "invalid_request_error", "param": "n", "code": "bad"}
    }
    assert problem.headers() == []
    assert Problem(429, "", "", retry_after_s=7).headers() == [(b"retry-after", b"7")]


def test_an_event_carries_the_status_that_can_no_longer_be_sent():
    """In `code`, and it is one event whatever the message holds."""
    raw = Problem(504, "late\n\ndata: x", "server_error", "replica_timeout").event()
    assert raw.startswith(b"data: ")
    assert raw.count(b"\n") == 2
    error = json.loads(raw[6:])["error"]
    assert (error["code"], error["reason"]) == ("504", "replica_timeout")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "invalid_request_error"),
    ],
)
def test_a_callers_fault_has_the_type_of_its_status(status, kind):
    """OpenAI's names."""
    assert ClientError("x", status=status).problem.type == kind


def test_a_refusal_says_when_to_come_back():
    """429 for limits, 503 for the rest; the wait is whole."""
    limit = Refused("x", code="rpm", status=429, retry_after_s=1.2).problem
    assert (limit.type, limit.retry_after_s, limit.outcome) == ("rate_limit_error", 2, Outcome.REFUSED)
    full = Refused("x", code="queue_timeout", status=503, retry_after_s=None, outcome=Outcome.SHED).problem
    assert (full.type, full.retry_after_s, full.outcome) == ("service_unavailable_error", None, Outcome.SHED)


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault not in (Fault.CLIENT, Fault.UNSERVED)])
def test_every_engine_fault_is_told_without_its_address_or_stack(fault):
    """What an engine answers with 5xx is for the operator."""
    secret = b'{"error":{"message":"Traceback: 10.0.0.7:8000"}}'
    problem = of_replica(ReplicaError(fault, "10.0.0.7:8000 broke", status=500, body=secret))
    assert problem.status in {502, 503, 504}
    assert b"10.0.0.7" not in problem.body() + problem.event()
    assert problem.outcome in {Outcome.REPLICA_ERROR, Outcome.TIMED_OUT, Outcome.SHED}


def test_an_engine_without_the_endpoint_is_told_as_a_model_that_does_not_serve_it():
    """Nobody failed: another model is to be asked, and the engine's own page says nothing of use."""
    problem = of_replica(ReplicaError(Fault.UNSERVED, "10.0.0.7", status=404, body=b'{"detail":"at 10.0.0.7"}'))
    assert (problem.status, problem.code, problem.param) == (400, "unsupported_model", "model")
    assert (problem.type, problem.outcome) == ("invalid_request_error", Outcome.CLIENT_ERROR)
    assert b"10.0.0.7" not in problem.body()


@pytest.mark.parametrize(
    ("status", "wait_s", "told"),
    [(429, 30.0, (429, 30)), (503, 5.0, (503, 5)), (529, None, (503, 1)), (429, None, (429, 1)), (429, 1e9, (429, 3600)), (503, float("inf"), (503, 3600))],
)  # fmt: skip
def test_busy_engines_pass_on_their_advice(status, wait_s, told):
    """P19: with a wait in any case."""
    problem = of_replica(ReplicaError(Fault.BACKPRESSURE, "busy", status=status, retry_after_s=wait_s))
    assert (problem.status, problem.retry_after_s) == told


def test_a_timeout_does_not_invite_to_come_back():
    """The same request would most likely take as long again."""
    assert of_replica(ReplicaError(Fault.TIMEOUT, "late")).retry_after_s is None


ENGINE_ERRORS = {
    "nested": ({"error": {"message": "too long", "type": "BadRequestError", "param": "n", "code": 400}}, ("too long", "n", None)),
    "openai": ({"error": {"message": "too long", "param": None, "code": "context_length"}}, ("too long", None, "context_length")),
    "string": ({"error": "too long"}, ("too long", None, None)),
    "flat": ({"object": "error", "message": "too long", "param": "n", "code": 40001}, ("too long", "n", None)),
    "fastapi": (
        {"detail": [{"type": "le", "loc": ["body", "n"], "msg": "too long", "input": 5}, {"msg": "second", "loc": []}]},
        ("too long", "n", None),
    ),
    "fastapi deep": ({"detail": [{"loc": ["body", "messages", 0, "role"], "msg": "too long"}]}, ("too long", "messages", None)),
    "fastapi text": ({"detail": "too long"}, ("too long", None, None)),
}  # fmt: skip
GENERIC = ("the engine refused the request with status 400", None, None)


@pytest.mark.parametrize("shape", ENGINE_ERRORS)
def test_an_engines_words_on_the_clients_fault_are_kept(shape):
    """In whichever shape it has them; they name the field."""
    body, expected = ENGINE_ERRORS[shape]
    problem = of_replica(ReplicaError(Fault.CLIENT, "refused", status=400, body=json.dumps(body).encode()))
    assert (problem.message, problem.param, problem.code) == expected
    assert (problem.status, problem.type, problem.outcome) == (400, "invalid_request_error", Outcome.CLIENT_ERROR)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b"null", b"5", b"{}", b'{"error":null}', b'{"error":{}}', b'{"error":{"message":5}}', b'{"detail":[]}', b'{"detail":{}}', b'{"detail":null}', b"[" * 100_000, b"\xff"],
)  # fmt: skip
def test_an_answer_without_words_gets_ours(body):
    """A sentence in any case."""
    problem = of_replica(ReplicaError(Fault.CLIENT, "refused", status=400, body=body))
    assert (problem.message, problem.param, problem.code) == GENERIC


@pytest.mark.parametrize(("status", "told"), [(400, 400), (413, 413), (422, 422), (409, 400), (451, 400)])
def test_an_engines_rare_status_becomes_a_plain_400(status, told):
    """The contract lists what clients may see."""
    assert of_replica(ReplicaError(Fault.CLIENT, "x", status=status)).status == told


@settings(deadline=None, max_examples=200)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["error", "message", "detail", "msg", "loc", "code", "param"]), inner, max_size=4), max_leaves=10))  # fmt: skip
def test_any_answer_of_an_engine_becomes_a_problem(body):
    """Never a bug of ours."""
    problem = of_replica(ReplicaError(Fault.CLIENT, "x", status=400, body=json.dumps(body).encode()))
    assert json.loads(problem.body())["error"]["message"] == problem.message


def test_bugs_and_stops_say_so():
    """No detail of a bug leaves the house."""
    assert (BUG.status, BUG.outcome, BUG.retry_after_s) == (500, Outcome.BUG, None)
    assert (STOPPING.status, STOPPING.outcome, STOPPING.retry_after_s) == (503, Outcome.STOPPED, 1)
