"""P42: every door that the servers themselves list, tried without the right key, with path tricks and odd methods."""

import asyncio
import http.client
import json
from contextlib import closing

import psutil
import pytest
from starlette.routing import Route

from gateway.app import Gateway
from gateway.settings import Settings
from policies.sqlite_store import SqliteStore
from tests.security.conftest import ADMIN_TOKEN, ask, ask_on, bearer
from tests.warmlane_process import PATIENCE_S

pytestmark = pytest.mark.e2e

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
OVERRIDES = [
    ("x-http-method-override", "DELETE"),
    ("x-http-method", "PUT"),
    ("x-method-override", "PUT"),
    ("x-original-url", "/health/live"),
    ("x-rewrite-url", "/health/live"),
    ("x-forwarded-prefix", "/health/live"),
    ("x-forwarded-for", "127.0.0.1"),
    ("x-original-host", "localhost"),
]
CLOSED = {401, 403, 404}


def tricks(path):
    """Other ways of writing the path, some of which a careless server takes for it, or for an open one."""
    yield path
    yield "/" + path
    yield path.replace("/", "//")
    yield path + "/"
    yield "/." + path
    yield "/health/live/.." + path
    yield "/health/live/../.." + path
    yield "/health/live/..%2f.." + path
    yield "/health/live;" + path
    yield "/health/live%2f.." + path
    yield "/" + path[1:].replace("/", "%2f")
    yield "/" + path[1:].replace("/", "%252f")
    yield path.upper()
    yield path.replace("a", "%61", 1)
    yield path + "%00"
    yield path + "?"
    yield path + "#/health/live"
    yield "/" + path[1:].replace("/", "\\")
    yield "http://127.0.0.1" + path


def concrete(path):
    """A route's path with something in its parameters."""
    for name in ("id", "name", "name:path", "request_id"):
        path = path.replace("{" + name + "}", "x")
    return path


@pytest.fixture(scope="module")
def management(system):
    """(method, path) of every route that the admin plane lists, public ones left out."""
    document = json.loads(ask(system.admin, "GET", "/admin/v1/openapi.json", bearer(ADMIN_TOKEN)).body)
    found = [
        (method.upper(), concrete(path))
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if method.upper() in METHODS and operation.get("security") != []
    ]
    assert len(found) > 20
    return found


@pytest.fixture(scope="module")
def data_routes(tmp_path_factory):
    """(data plane routes, control routes) as (methods, path), from the apps themselves."""
    return asyncio.run(_listed(tmp_path_factory.mktemp("routes") / "s.sqlite3"))


async def _listed(path):
    async with await SqliteStore.open(path) as store:
        gateway = Gateway(Settings(), store)
        return [
            [(sorted(one.methods - {"HEAD"}), concrete(one.path)) for one in app.routes if isinstance(one, Route)]
            for app in (gateway.app(), gateway.control)
        ]


def credentials(system):
    """Headers of those who are no administrator."""
    return {
        "nobody": [],
        "tenant": bearer(system.alder.key),
        "tenant by x-api-key": [("x-api-key", system.alder.key)],
        "token by x-api-key": [("x-api-key", ADMIN_TOKEN)],
        "token as user name": [("authorization", f"Basic {ADMIN_TOKEN}")],
        "two tokens": bearer(ADMIN_TOKEN) + bearer(ADMIN_TOKEN),
        "token and more": bearer(ADMIN_TOKEN + "0"),
        "part of the token": bearer(ADMIN_TOKEN[:-1]),
        "token by cookie": [("cookie", f"admin_token={ADMIN_TOKEN}; token={ADMIN_TOKEN}")],
    }


def test_every_management_route_is_closed_to_all_but_its_administrators(system, management):
    """Every listed method and path, for each wrong credential: refused before anything is looked at or changed."""
    before = ask(system.admin, "GET", "/admin/v1/organizations", bearer(ADMIN_TOKEN)).body
    with closing(http.client.HTTPConnection(*system.admin, timeout=PATIENCE_S)) as connection:
        for who, headers in credentials(system).items():
            for method, path in management:
                answer = ask_on(connection, method, path, headers)
                assert answer.status in CLOSED, (who, method, path, answer)
    assert ask(system.admin, "GET", "/admin/v1/organizations", bearer(ADMIN_TOKEN)).body == before


def test_the_same_routes_are_open_to_the_token(system, management):
    """The other half: a door that is shut to everybody proves nothing."""
    opened = 0
    for method, path in management:
        if method == "GET":
            answer = ask(system.admin, method, path, bearer(ADMIN_TOKEN))
            assert answer.status in {200, 404}, (method, path, answer)
            opened += answer.status == 200
    assert opened >= 6


@pytest.mark.parametrize("who", ["nobody", "tenant"])
def test_no_spelling_of_a_path_opens_a_management_route(system, management, who):
    """Double slashes, dot segments, encoded slashes, case, trailing slashes, paths beside an open one."""
    headers = credentials(system)[who]
    with closing(http.client.HTTPConnection(*system.admin, timeout=PATIENCE_S)) as connection:
        for path in sorted({path for _, path in management}):
            for spelt in tricks(path):
                answer = ask_on(connection, "GET", spelt, headers)
                assert answer.status in CLOSED, (spelt, answer)


def test_no_method_and_no_override_header_opens_a_management_route(system, management):
    """A method that is not listed, or hidden in a header behind one that is."""
    with closing(http.client.HTTPConnection(*system.admin, timeout=PATIENCE_S)) as connection:
        for path in sorted({path for _, path in management}):
            for method in METHODS:
                answer = ask_on(connection, method, path, bearer(system.alder.key))
                assert answer.status in CLOSED, (method, path, answer)
            for header in OVERRIDES:
                answer = ask_on(connection, "GET", "/health/live" + path, [header])
                assert answer.status in CLOSED, (header, path, answer)
                answer = ask_on(connection, "POST", path, [header])
                assert answer.status in CLOSED, (header, path, answer)


def test_an_override_header_does_not_change_what_an_open_route_does(system, management):
    """`/health/live` stays what it is, whatever a header says it should have been."""
    for name, value in [*OVERRIDES, ("x-original-url", "/admin/v1/keys"), ("x-rewrite-url", "/metrics")]:
        answer = ask(system.admin, "GET", "/health/live", [(name, value)])
        assert (answer.status, json.loads(answer.body)) == (200, {"status": "alive"})


def test_the_data_plane_serves_no_management_route_to_anybody(system, management, data_routes):
    """Not even to the administrator: the public port has no such doors, nor those of the control socket."""
    own = {path for _, path in data_routes[0]}
    paths = {path for _, path in management} | {path for _, path in data_routes[1]} | {"/metrics", "/console"}
    paths = sorted(paths - own)
    assert len(paths) > 20
    with closing(http.client.HTTPConnection(*system.public, timeout=PATIENCE_S)) as connection:
        for credential in (ADMIN_TOKEN, system.alder.key):
            for path in paths:
                for method in ("GET", "POST", "PUT", "DELETE"):
                    answer = ask_on(connection, method, path, bearer(credential))
                    assert answer.status == 404, (method, path, answer)
            for path in ("/admin/v1/keys", "/metrics", "/statistics", "/fleet"):
                for spelt in tricks(path):
                    if not spelt.startswith("/health/live"):
                        answer = ask_on(connection, "GET", spelt, bearer(credential))
                        assert answer.status == 404, (spelt, answer)


def test_the_admin_plane_serves_no_control_route(system, data_routes):
    """What the supervisor may order its gateways is not on any port."""
    for methods, path in data_routes[1]:
        if path != "/metrics":
            for method in methods:
                assert ask(system.admin, method, path, bearer(ADMIN_TOKEN)).status in {404, 405}


def test_every_data_route_but_health_asks_for_a_key(system, data_routes):
    """Listed by the data plane itself; the admin token is no key there."""
    asked = 0
    for methods, path in data_routes[0]:
        if path.startswith("/health/"):
            continue
        for method in methods:
            for headers in (
                [],
                bearer(ADMIN_TOKEN),
                bearer("wl-00000000-none"),
                [("cookie", f"key={system.alder.key}")],
            ):
                answer = ask(system.public, method, path, headers, b"{}" if method == "POST" else b"")
                assert answer.status == 401, (method, path, headers, answer)
                asked += 1
    assert asked >= 12


@pytest.mark.parametrize("name", ["api_key", "key", "access_token", "token", "authorization", "x-api-key"])
def test_a_key_in_a_query_string_is_refused_on_both_planes(system, name):
    """P41: URLs end up in logs, histories and proxies; the answer does not repeat what was sent."""
    for address, path, secret in (
        (system.public, "/v1/models", system.alder.key),
        (system.public, "/v1/chat/completions", system.alder.key),
        (system.admin, "/admin/v1/keys", ADMIN_TOKEN),
    ):
        method = "POST" if "chat" in path else "GET"
        answer = ask(address, method, f"{path}?{name}={secret}", body=b"{}" if method == "POST" else b"")
        assert answer.status == 401
        assert secret.encode() not in answer.body
        assert secret not in str(answer.headers)


def test_everything_listens_on_the_loopback_unless_told_otherwise(system):
    """P42: workers and both planes; a default that is open would be found."""
    running = system.running
    processes = [psutil.Process(running.process.pid), *running.children()]
    listening = [
        one.laddr for process in processes for one in process.net_connections("inet") if one.status == "LISTEN"
    ]
    assert len(listening) >= 3
    assert {address.ip for address in listening} <= {"127.0.0.1", "::1"}
