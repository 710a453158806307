"""One tenant's things are not there for another: not in a list, not by its id, not by how long the answer takes."""

import json

import pytest

from tests.security.conftest import ADMIN_TOKEN, IN_LEDGER, ask, bearer, record_of

pytestmark = pytest.mark.e2e


def chat_of(system, tenant):
    """A request of the tenant that has ended and is recorded: its id."""
    body = json.dumps(
        {"model": "fake-model", "max_tokens": 4, "messages": [{"role": "user", "content": tenant.project}]}
    )
    answer = ask(system.public, "POST", "/v1/chat/completions", bearer(tenant.key), body.encode())
    assert answer.status == 200, answer
    record_of(system, answer.headers["x-request-id"])
    return answer.headers["x-request-id"]


def same(answer):
    """What a caller can see of an answer, without the time and the id that every answer has of its own."""
    headers = {name: value for name, value in answer.headers.items() if name not in {"date", "x-request-id"}}
    return answer.status, headers, answer.body


@pytest.fixture(scope="module")
def own_routes(system):
    """Which of a team's own routes this version has."""
    paths = ("/v1/limits", "/v1/usage", "/v1/requests/none")
    found = {path: ask(system.public, "GET", path, bearer(system.alder.key)) for path in paths}
    return {path for path, answer in found.items() if b"route_not_found" not in answer.body}


def own(own_routes, path):
    """Skip where the route is not there yet."""
    if path not in own_routes:
        pytest.skip(f"this version has no {path}")


@pytest.mark.parametrize("suffix", ["", "/", "/receipt", "?project=x"])
def test_a_foreign_request_is_as_absent_as_one_that_never_was(system, own_routes, suffix):
    """The same 404, byte for byte: nobody learns that an id exists."""
    own(own_routes, "/v1/requests/none")
    theirs = chat_of(system, system.alder)
    never = theirs[:-4] + ("0000" if theirs[-4:] != "0000" else "1111")
    foreign = ask(system.public, "GET", f"/v1/requests/{theirs}{suffix}", bearer(system.birch.key))
    absent = ask(system.public, "GET", f"/v1/requests/{never}{suffix}", bearer(system.birch.key))
    assert foreign.status == 404
    if b"route_not_found" in foreign.body:  # repeats the path that was asked for, and knows no ids
        absent.body = absent.body.replace(never.encode(), theirs.encode())
    else:
        assert theirs.encode() not in foreign.body
    assert same(foreign) == same(absent)


def test_an_own_request_is_shown_and_only_by_its_own_key(system, own_routes):
    """The other half: what is hidden from birch is there for alder, and for no admin token on this port."""
    own(own_routes, "/v1/requests/none")
    theirs = chat_of(system, system.alder)
    mine = ask(system.public, "GET", f"/v1/requests/{theirs}", bearer(system.alder.key))
    assert mine.status == 200
    assert system.birch.project.encode() not in mine.body
    assert ask(system.public, "GET", f"/v1/requests/{theirs}", bearer(ADMIN_TOKEN)).status == 401
    assert ask(system.public, "GET", f"/v1/requests/{theirs}").status == 401


@pytest.mark.parametrize("query", ["", "?project={alder}", "?organization={org}", "?key={key}", "?group_by=project"])
@pytest.mark.parametrize("path", ["/v1/usage", "/v1/limits"])
def test_usage_and_limits_are_the_keys_own_whatever_the_query_says(system, own_routes, path, query):
    """Nothing of alder's is in birch's answer: no id, no number that moves with alder's requests."""
    own(own_routes, path)
    alder, birch = system.alder, system.birch
    query = query.format(alder=alder.project, org=alder.organization, key=alder.key_id)
    record_of(system, chat_of(system, birch), IN_LEDGER)
    before = ask(system.public, "GET", path + query, bearer(birch.key))
    for _ in range(3):
        theirs = chat_of(system, alder)
    record_of(system, theirs, IN_LEDGER)
    after = ask(system.public, "GET", path + query, bearer(birch.key))
    for name in (alder.project, alder.organization, alder.key_id, alder.key[:11]):
        assert name.encode() not in before.body + after.body
    if before.status == 200:
        assert _numbers(before.body) == _numbers(after.body)


def _numbers(body):
    """All numbers of an answer but those that are times or move with time alone."""

    def walk(value, name=""):
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from walk(inner, key)
        elif isinstance(value, list):
            for inner in value:
                yield from walk(inner, name)
        elif isinstance(value, int | float) and not any(word in name for word in ("reset", "time", "at", "_s")):
            yield name, value

    return list(walk(json.loads(body)))


def test_models_are_the_keys_own(system):
    """A model that a project may not use is not there for it, in the list and by name."""
    limits = {"models": ["another-model"]}
    system.running.admin(f"/projects/{system.birch.project}/limits", "PUT", limits)
    try:
        listed = ask(system.public, "GET", "/v1/models", bearer(system.birch.key))
        assert json.loads(listed.body)["data"] == []
        hidden = ask(system.public, "GET", "/v1/models/fake-model", bearer(system.birch.key))
        never = ask(system.public, "GET", "/v1/models/fake-mode1", bearer(system.birch.key))
        assert hidden.status == never.status == 404
        assert hidden.body.replace(b"fake-model", b"X") == never.body.replace(b"fake-mode1", b"X")
        assert json.loads(ask(system.public, "GET", "/v1/models", bearer(system.alder.key)).body)["data"]
    finally:
        system.running.admin(f"/projects/{system.birch.project}/limits", "PUT", {})


def test_rate_limit_headers_tell_of_the_callers_own_limits(system):
    """One tenant's requests do not move what another is told."""
    for tenant in (system.alder, system.birch):
        system.running.admin(f"/projects/{tenant.project}/limits", "PUT", {"rpm": 100})
    try:
        body = json.dumps({"model": "fake-model", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]})

        def remaining(tenant):
            answer = ask(system.public, "POST", "/v1/chat/completions", bearer(tenant.key), body.encode())
            return int(answer.headers["x-ratelimit-remaining-requests"])

        first = remaining(system.birch)
        for _ in range(5):
            remaining(system.alder)
        assert remaining(system.birch) == first - 1
    finally:
        for tenant in (system.alder, system.birch):
            system.running.admin(f"/projects/{tenant.project}/limits", "PUT", {})


def test_request_ids_cannot_be_guessed_or_counted(system):
    """An id is 80 random bits at least; two in a row say nothing of a third."""
    first, second = chat_of(system, system.alder), chat_of(system, system.alder)
    assert first != second
    assert len(first.rpartition("_")[2].replace("-", "")) >= 20
    common = next((place for place, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), 0)
    assert common <= len(first) - 16
