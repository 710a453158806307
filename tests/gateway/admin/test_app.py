"""P42: every door of the admin plane has a lock; what is not a door is a JSON 404 or 405."""

import json
import re

import httpx
import pytest

from gateway.admin.app import LIVE_PATH, admin_endpoints, create_admin_app
from gateway.admin.control_client import GatewayControl
from policies.store import StoreError

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW")
TOKEN = b"admin-token-0123456789"
NO_CONTROL = GatewayControl(list)
ENDPOINTS = admin_endpoints(None, NO_CONTROL)  # type: ignore[arg-type]
PATHS = sorted({re.sub(r"\{[^}]*\}", "x", one.path) for one in ENDPOINTS})
CLOSED_PATHS = [path for path in PATHS if path != LIVE_PATH]

TRICKS = [
    "//admin/v1/keys",
    "/admin//v1/keys",
    "/./admin/v1/keys",
    "/admin/v1/../v1/keys",
    "/health/live/../../admin/v1/keys",
    "/health/live/",
    "/health/live//",
    "/health/live;/admin/v1/keys",
    "/health",
    "/HEALTH/LIVE",
    "/admin/v1/keys/",
    "/ADMIN/V1/KEYS",
    "/Admin/v1/Keys",
    "/admin/v1/keys;x=1",
    "/admin/v1/keys\\",
    "/admin/v1/keys\x00",
    "/admin/v1",
    "/",
    "",
    "*",
    "http://other/admin/v1/keys",
]


class Answer:
    """What a raw ASGI call was answered with."""

    def __init__(self, messages) -> None:
        self.status = messages[0]["status"]
        self.headers = dict(messages[0]["headers"])
        self.body = b"".join(message.get("body", b"") for message in messages[1:])

    @property
    def error(self):
        return json.loads(self.body)["error"]


async def call(app, method: str, path: str, headers=(), *, body: bytes = b"", query: bytes = b"") -> Answer:
    """One request exactly as spelled, without a client that tidies its path."""
    sent: list = []
    received = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        return received.pop(0) if received else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query, "root_path": "",
        "headers": list(headers), "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    await app(scope, receive, send)
    return Answer(sent)


def bearer(token: bytes):
    return [(b"authorization", b"Bearer " + token)]


WRONG = {
    "anonymous": [],
    "wrong token": bearer(b"admin-token-012345678X"),
    "a beginning of the token": bearer(TOKEN[:-1]),
    "token twice": bearer(TOKEN) * 2,
    "other scheme": [(b"authorization", b"Basic " + TOKEN)],
    "x-api-key": [(b"x-api-key", TOKEN)],
    "empty": bearer(b""),
    "long": bearer(TOKEN + b"x" * 10_000),
}


@pytest.mark.parametrize("path", CLOSED_PATHS)
@pytest.mark.parametrize("who", WRONG)
async def test_every_route_and_method_needs_the_admin_token(app, path, who):
    """The inventory is the server's own table, so a new route cannot be forgotten."""
    for method in METHODS:
        answer = await call(app, method, path, WRONG[who])
        assert answer.status == 401, (method, path)
        assert answer.error["code"] == "invalid_admin_token"
        assert answer.headers[b"www-authenticate"] == b"Bearer"


@pytest.mark.parametrize("path", CLOSED_PATHS)
async def test_a_tenants_key_opens_no_admin_route(app, key, path):
    """A data-plane key, even a valid one, is nobody here."""
    for method in METHODS:
        assert (await call(app, method, path, bearer(key["secret"].encode()))).status == 401


@pytest.mark.parametrize("path", [*TRICKS, "/health/live\n", "/admin/v1/keys\n"])
async def test_no_spelling_of_a_path_comes_in_beside_the_lock(app, path):
    """The token is asked for before routing, so a path that is read differently later cannot matter."""
    for method in METHODS:
        assert (await call(app, method, path)).status == 401, (method, path)


@pytest.mark.parametrize("path", TRICKS)
async def test_with_the_token_a_strange_path_is_a_json_404(app, path):
    """Only the documented spelling is a route; nothing redirects."""
    answer = await call(app, "GET", path, bearer(TOKEN))
    assert answer.status == 404
    assert answer.error["code"] == "unknown_route"


@pytest.mark.parametrize("header", [b"x-http-method-override", b"x-http-method", b"x-method-override"])
async def test_method_override_headers_are_ignored(app, key, header):
    """A GET that says DELETE in a header stays a GET."""
    path = f"/admin/v1/keys/{key['id']}"
    headers = [*bearer(TOKEN), (header, b"DELETE")]
    answer = await call(app, "GET", path, headers)
    assert json.loads(answer.body)["revoked_at"] is None
    assert (await call(app, "POST", path, headers, query=b"_method=DELETE")).status == 405


async def test_liveness_is_open_and_says_nothing_else(app):
    """An orchestrator has no token."""
    answer = await call(app, "GET", LIVE_PATH)
    assert (answer.status, answer.body) == (200, b'{"status":"alive"}')
    assert (await call(app, "POST", LIVE_PATH)).status == 405


@pytest.mark.parametrize("path", PATHS)
async def test_a_wrong_method_is_a_json_405_that_names_the_right_ones(app, path):
    """A client must learn what a route takes."""
    answer = await call(app, "PATCH", path, bearer(TOKEN))
    assert answer.status == 405
    assert answer.error["code"] == "unknown_route"
    methods = {one.method for one in ENDPOINTS if re.sub(r"\{[^}]*\}", "x", one.path) == path}
    assert methods <= set(answer.headers[b"allow"].decode().split(", "))


async def test_a_websocket_is_turned_away(app):
    """No protocol but HTTP has a door here."""
    sent: list = []

    async def send(message):
        sent.append(message)

    await app({"type": "websocket", "path": "/admin/v1/keys", "headers": []}, None, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


@pytest.mark.parametrize("token", ["", " ", "two words", "line\nend", "é", "x" * 513])
def test_a_token_that_nobody_could_send_is_refused_at_the_start(store, token):
    """An empty token must not become an open door."""
    with pytest.raises(ValueError, match="admin token"):
        create_admin_app(store, NO_CONTROL, token)


async def test_a_body_beyond_the_bound_is_413(app):
    """The supervisor must not be filled by a body."""
    answer = await call(app, "POST", "/admin/v1/organizations", bearer(TOKEN), body=b"x" * (1024 * 1024 + 1))
    assert answer.status == 413
    assert answer.error["code"] == "body_too_large"


async def test_a_body_that_breaks_off_changes_nothing(app, store):
    """A client that left in mid-body has asked for nothing."""
    sent: list = []
    received = [{"type": "http.request", "body": b'{"name":', "more_body": True}, {"type": "http.disconnect"}]

    async def receive():
        return received.pop(0)

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/admin/v1/organizations", "query_string": b"", "root_path": "",
        "headers": bearer(TOKEN), "http_version": "1.1", "scheme": "http", "server": ("a", 1),
    }  # fmt: skip
    await app(scope, receive, send)
    assert sent[0]["status"] == 400
    assert (await store.organizations()).items == ()


async def test_a_failing_store_is_503_and_a_bug_is_500_both_without_inner_words(control):
    """What broke belongs in the log, not in an answer."""

    class BrokenStore:
        async def organizations(self, **_):
            raise StoreError("/secret/path failed")

        async def projects(self, **_):
            raise RuntimeError("/secret/path")

        organization = project = None

    transport = httpx.ASGITransport(create_admin_app(BrokenStore(), control, "t" * 20), raise_app_exceptions=False)
    headers = {"authorization": "Bearer " + "t" * 20}
    async with httpx.AsyncClient(transport=transport, base_url="http://admin", headers=headers) as client:
        for path, status, code in (
            ("organizations", 503, "store_unavailable"),
            ("projects", 500, "internal_error"),
        ):
            answer = await client.get(f"/admin/v1/{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
            assert "secret" not in answer.text


async def test_a_lost_store_is_503_with_what_to_do(admin, store, project):
    """D27: a change that could not last is not made, and the operator is told how to come out of it."""
    path = store._path
    path.unlink()
    changes = [
        ("POST", "organizations", {"name": "late"}),
        ("POST", "keys", {"name": "late", "project_id": project["id"]}),
        ("PUT", f"projects/{project['id']}/limits", {"rpm": 1}),
        ("GET", "organizations", None),
    ]
    for method, route, body in changes:
        answer = await admin.request(method, f"/admin/v1/{route}", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (503, "store_unavailable")
        assert error["message"] == f"store lost: {path} was deleted, restore it or restart"


async def test_the_openapi_document_has_every_route_and_only_those(admin):
    """It is made from the table that the routes are made from."""
    document = (await admin.get("/admin/v1/openapi.json")).json()
    listed = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert listed == {(one.method, re.sub(r"\{(\w+):\w+\}", r"{\1}", one.path)) for one in ENDPOINTS}
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))
    text = json.dumps(document)
    for reference in set(re.findall(r'"#/components/schemas/(\w+)"', text)):
        assert reference in document["components"]["schemas"]
    assert document["openapi"] == "3.1.0"
    assert document["paths"]["/admin/v1/keys"]["get"]["parameters"][0]["name"] == "limit"
    assert document["paths"][LIVE_PATH]["get"]["security"] == []
