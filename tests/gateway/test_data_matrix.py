"""Who may do what on the data plane: credential x route x own, neighbouring or foreign object, from the app's own routes.

A new route without an entry here fails the test. Roles of the admin plane open nothing; a key with `service` sees what
is its project's, and of everything else as much as of what never was.
"""

import itertools

import pytest
from starlette.routing import Route

from gateway.request import FORMS, Surface
from policies.store import NewKey
from policies.tenant import Role
from tests.gateway import audio_kit, inputs_kit
from tests.gateway.kit import MODEL, chat, completion, message, respond
from tests.scripted_engine import answer

OPEN, KEYED = "open to everybody", "needs a key with service"
MATRIX = {
    **{("POST", surface.value): KEYED for surface in Surface},
    ("GET", "/v1/models"): KEYED,
    ("GET", "/v1/models/{name:path}"): KEYED,
    ("GET", "/v1/limits"): KEYED,
    ("GET", "/v1/usage"): KEYED,
    ("GET", "/v1/requests/{id}"): KEYED,
    ("GET", "/v1/responses/{id}"): KEYED,
    ("GET", "/v1/responses/{id}/input_items"): KEYED,
    ("POST", "/v1/responses/{id}/cancel"): KEYED,
    ("DELETE", "/v1/responses/{id}"): KEYED,
    ("GET", "/health/live"): OPEN,
    ("GET", "/health/ready"): OPEN,
}
REFUSED = (
    *("none", "misspelt", "expired", "revoked", "rotated", "deleted"),
    *(role.value for role in Role if role is not Role.SERVICE),
)
ADMITTED = ("service", "service and viewer", "service and platform admin")
INPUT_BODIES = {surface.value: body() for surface, body in inputs_kit.BODIES.items()}
GENERATING_BODIES = {
    Surface.CHAT: chat(),
    Surface.COMPLETIONS: completion(),
    Surface.MESSAGES: message(),
    Surface.RESPONSES: respond(),
}
FORM, FORM_TYPE = audio_kit.form()
BODIES = {
    **{surface.value: body for surface, body in GENERATING_BODIES.items()},
    **INPUT_BODIES,
    **{surface.value: FORM for surface in FORMS},
}


def inventory(gateway):
    """(method, path) of every route that the app lists."""
    routes = [one for one in gateway.gateway.app().routes if isinstance(one, Route)]
    return {(method, one.path) for one in routes for method in one.methods - {"HEAD"}}


async def credential(gateway, who):
    """The secret of whoever this is, None for nobody."""
    if who == "none":
        return None
    project = gateway.project if who != "deleted" else await gateway.new_project()
    words = {"platform admin": Role.PLATFORM_ADMIN} | {role.value: role for role in Role}
    roles = frozenset(words.get(word, Role.SERVICE) for word in who.split(" and "))
    ends = {"expires_at": 1_000} if who == "expired" else {}
    key, secret = await gateway.store.create_key(NewKey(project, who, roles, **ends))
    if who == "revoked":
        await gateway.store.revoke_key(key.id)
    elif who == "rotated":
        await gateway.store.rotate_key(key.id)
    elif who == "deleted":
        await gateway.store.delete_project(project, cascade=True)
    await gateway.parts.directory.refresh()
    return secret.text[:-1] + "~" if who == "misspelt" else secret.text


async def ask(gateway, method, path, key):
    """The answer to one asking about what the gateway's own project has."""
    is_response = path.startswith(f"{Surface.RESPONSES.value}/{{id}}")
    id_ = gateway.response_id if is_response else gateway.request_id
    spelt = path.replace("{name:path}", MODEL).replace("{id}", id_)
    if method == "GET":
        return await gateway.get(spelt, key=key)
    if is_response:
        return await gateway.post(None, path=spelt, key=key, method=method)
    gateway.script(inputs_kit.served() if path in INPUT_BODIES else answer("Hi"))
    if BODIES[path] is FORM:
        gateway.script(audio_kit.transcribed("Hi"))
        return await gateway.post(FORM, path=spelt, key=key, headers=[("content-type", FORM_TYPE)])
    return await gateway.post(BODIES[path], path=spelt, key=key)


@pytest.fixture
async def gateway(launch):
    running = await launch(kind="vllm")  # which has every surface
    running.script(answer("Hi"))
    running.request_id = (await running.post(chat())).header("x-request-id")
    running.script(answer("Hi"))
    running.response_id = (await running.post(respond(), path=Surface.RESPONSES.value)).json["id"]
    await running.until_recorded(2)
    return running


async def test_every_route_has_its_row(gateway):
    """The app's own routes are the inventory."""
    assert inventory(gateway) == set(MATRIX)


@pytest.mark.parametrize("who", REFUSED)
async def test_who_has_no_service_key_gets_nothing_but_health(gateway, who):
    """Every route for each of them: 401 with one text for all who once were somebody; engines are not asked."""
    key = await credential(gateway, who)
    seen = len(gateway.engines.requests)
    for (method, path), access in MATRIX.items():
        found = await ask(gateway, method, path, key)
        if access is OPEN:
            assert found.status == 200, (who, path)
        else:
            assert found.status == 401, (who, path, found.status)
            assert gateway.project not in found.body.decode()
    assert len(gateway.engines.requests) == seen


@pytest.mark.parametrize("who", ADMITTED)
async def test_a_service_key_has_every_route_of_its_own(gateway, who):
    """The other half: what is shut to everybody proves nothing. Another role beside `service` changes nothing."""
    key = await credential(gateway, who)
    for method, path in MATRIX:
        found = await ask(gateway, method, path, key)
        # The route's own answer, not the door's: without a ledger there is no usage to tell, and nothing to cancel.
        own = {"/v1/usage": 503, "/v1/responses/{id}/cancel": 400}
        assert found.status == own.get(path, 200), (path, found.status)


@pytest.mark.parametrize("whose", ["beside", "foreign"])
async def test_another_projects_objects_are_as_absent_as_what_never_was(gateway, whose):
    """A sister project is another tenant, too: its request by id, its models, its limits."""
    organization = gateway.organization
    if whose == "foreign":
        organization = (await gateway.store.create_organization("other")).id
    other = await gateway.new_project('{"rpm": 9, "models": ["another"]}', organization)
    key = await gateway.new_key(other)
    theirs = await gateway.get(f"/v1/requests/{gateway.request_id}", key=key)
    never = await gateway.get(f"/v1/requests/{gateway.request_id[:-4]}0000", key=key)
    assert (theirs.status, theirs.body) == (never.status, never.body) == (404, never.body)
    for more in ("", "/input_items"):
        theirs = await gateway.get(f"/v1/responses/{gateway.response_id}{more}", key=key)
        assert (theirs.status, theirs.code) == (404, "response_not_found")
    await gateway.limit(gateway.project, '{"rpm": 77}')
    limits = await gateway.get("/v1/limits", key=key)
    assert {one["limit"]: one["most"] for one in limits.json["data"]} == {"rpm": 9}
    assert limits.json["data"][0]["used"] == 0
    assert (await gateway.get("/v1/models", key=key)).json["data"] == []
    hidden, none = [await gateway.get(f"/v1/models/{name}", key=key) for name in (MODEL, "none-such")]
    assert hidden.body.replace(MODEL.encode(), b"X") == none.body.replace(b"none-such", b"X")
    assert hidden.status == none.status == 404


def test_every_decision_is_one_of_two():
    """A third would be asked by no test."""
    assert {key for key, _ in itertools.groupby(sorted(MATRIX.values()))} == {OPEN, KEYED}
