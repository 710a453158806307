"""The admin plane against its own OpenAPI document, by generated requests: no 5xx, and no answer beside the document."""

import asyncio
import functools
import json
import shutil
import socket
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import structlog
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from gateway.admin.app import admin_endpoints, create_admin_app
from gateway.admin.control_client import GatewayControl
from gateway.admin.openapi import openapi
from gateway.admin.usage import Usage
from gateway.admin_listener import serving
from policies.ledger import Retention
from policies.sqlite_ledger import SqliteLedger
from policies.sqlite_store import SqliteStore
from tests.gateway.admin.conftest import TOKEN, FakeGateway
from tests.gateway.admin.test_usage import row

schemathesis = pytest.importorskip("schemathesis")
from schemathesis.core.parameters import ParameterLocation  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    missing_required_header,
    negative_data_rejection,
    positive_data_acceptance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

KEEP = Retention(30, 400)
ENDPOINTS = admin_endpoints(None, GatewayControl(list), usage=Usage(None, KEEP))  # type: ignore[arg-type]
SCHEMA = schemathesis.openapi.from_dict(openapi(ENDPOINTS, "0"))
OPERATIONS = {f"{found.ok().method.upper()} {found.ok().path}": found.ok() for found in SCHEMA.get_all_operations()}
CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
    missing_required_header,
    unsupported_method,
]
# Valid by the document and refused all the same: cursors and ids that nobody was given, times in an order, a lane above
# another. Every other operation takes whatever the document allows. `ignored_auth` would send our token along; who may
# come in is tested for every route by test_matrix.py and tests/security.
HAS_MORE_RULES = {
    "GET /admin/v1/organizations",
    "GET /admin/v1/projects",
    "GET /admin/v1/keys",
    "GET /admin/v1/usage",
    "GET /admin/v1/usage/requests",
    "GET /admin/v1/audit",
    "POST /admin/v1/projects",
    "POST /admin/v1/keys",
    "POST /admin/v1/replicas/warm",
    "PUT /admin/v1/projects/{id}/limits",
    "PUT /admin/v1/organizations/{id}/limits",
}
HEADERS = {"authorization": f"Bearer {TOKEN}"}
NUM_EXAMPLES = 36
ANSWERS = {
    ("POST", "/directory/refresh"): {},
    ("GET", "/replicas"): {"data": [], "next_cursor": None},
    ("POST", "/replicas/w-1/drain"): {"name": "w-1"},
    ("POST", "/replicas/w-1/resume"): {"name": "w-1"},
    ("POST", "/replicas/w-1/release"): {"name": "w-1"},
    ("POST", "/routes/explain"): {"chosen": None},
    ("GET", "/queue"): {"total": 0},
    ("GET", "/prefixes"): {"data": []},
    ("POST", "/prefixes/warm"): {
        "project_id": "p",
        "organization_id": "o",
        "model": "m",
        "lane": "bulk",
        "asked": 1,
        "warmed": 1,
        "charged_tokens": 5,
        "replicas": [],
    },
    ("GET", "/statistics"): {"in_flight": {}},
    ("GET", "/metrics"): "# TYPE a counter\na_total 1.0\n",
}


@pytest.fixture(scope="module")
def plane():
    """The URL of a real admin plane with a SQLite store, served by a thread of its own."""
    folder = Path(tempfile.mkdtemp(prefix="wl-"))  # a Unix socket's path must be short
    with structlog.testing.capture_logs(), _served(folder) as url:
        yield url
    shutil.rmtree(folder)


@contextmanager
def _served(folder):
    started, urls = threading.Event(), []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve():
        gateway = FakeGateway(folder / "g.sock")
        for (method, path), answer in ANSWERS.items():
            gateway.will(method, path, answer)
        gateway.will("GET", "/requests/req_00001", {"request_id": "req_00001"})
        gateway.will("GET", "/requests/req_00001/receipt", {"request_id": "req_00001"})
        server = await asyncio.start_unix_server(gateway.serve, gateway.socket)
        control = GatewayControl(lambda: [gateway.socket])
        async with (
            server,
            await SqliteStore.open(folder / "s") as store,
            await SqliteLedger.open(folder / "l") as ledger,
        ):
            await ledger.add([row(1)])
            app = create_admin_app(store, control, TOKEN, usage=Usage(ledger, KEEP))
            # Named TCP, or asyncio does not switch off the delay of small packets: 40 ms for each answer.
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            async with serving(app, listener):
                urls.append(f"http://127.0.0.1:{listener.getsockname()[1]}")
                started.set()
                await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert started.wait(20)
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()


@pytest.fixture(scope="module")
def session(plane):
    """One connection for all requests."""
    import requests

    with requests.Session() as one:
        yield one


@pytest.fixture(scope="module")
def made(plane):
    """Makes an organisation, a project and a key that exist."""
    with httpx.Client(base_url=f"{plane}/admin/v1", headers=HEADERS) as client:

        def make():
            org = client.post("/organizations", json={"name": "acme"}).json()["id"]
            project = client.post("/projects", json={"name": "chat", "organization_id": org}).json()["id"]
            key = client.post("/keys", json={"name": "laptop", "project_id": project}).json()["id"]
            return {
                "organizations": org,
                "projects": project,
                "keys": key,
                "requests": "req_00001",
                "usage": "req_00001",
            }

        yield make


def on_something_real(case, find):
    """The same case about objects that exist, where it names some. `find`: their ids."""
    if not (case.path_parameters or isinstance(case.body, dict)):
        return
    ids = find()
    kind = case.path.removeprefix("/admin/v1/").split("/")[0]
    if "id" in (case.path_parameters or {}):
        case.path_parameters["id"] = ids[kind]
    if "name" in (case.path_parameters or {}):
        case.path_parameters["name"] = "w-1"
    if isinstance(case.body, dict):
        for name, of in (("organization_id", "organizations"), ("project_id", "projects")):
            if name in case.body:
                case.body[name] = ids[of]


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_answer_is_one_that_the_document_tells(plane, session, made, name):
    """Generated bodies, queries and paths, half of them about what exists: valid ones and others alike."""
    seen = set()
    find = made if name.startswith("DELETE") else functools.cache(made)

    @given(case=OPERATIONS[name].as_strategy(), is_real=st.booleans())
    @settings(
        max_examples=NUM_EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case, is_real):
        if is_real:
            on_something_real(case, find)
        path = case.formatted_path
        assume("//" not in path and not path.endswith("/."))  # another path: a client tidies it before it is sent
        checks = CHECKS if name in HAS_MORE_RULES else [*CHECKS, positive_data_acceptance]
        answer = case.call_and_validate(base_url=plane, session=session, headers=HEADERS, checks=checks)
        seen.add(answer.status_code)

    ask()
    if name.startswith("DELETE"):  # each real thing can go once: chance alone need not meet one that may
        path = name.removeprefix("DELETE ").replace("{id}", find()[name.split("/")[3]])
        flags = {} if "/keys/" in path else {"cascade": "true"}
        seen.add(session.delete(plane + path, params=flags, headers=HEADERS).status_code)
    assert any(status < 300 for status in seen) or name.endswith("/config/reload"), seen


def is_wrong_by_headers_alone(case):
    """Whether only its headers break the document."""
    wrong = {place for place, part in case.meta.components.items() if part.mode.is_negative}
    return wrong == {ParameterLocation.HEADER}


TAKES_SOMETHING = [
    name
    for name, one in OPERATIONS.items()
    if (one.body or one.query) and name != "POST /admin/v1/routes/explain"  # read by a gateway, here a fake one
]


@pytest.mark.parametrize("name", TAKES_SOMETHING)
def test_what_the_document_does_not_allow_is_refused(plane, session, name):
    """Bodies and queries that are wrong in some place: refused as the document says, never taken, never a 5xx."""

    @given(case=OPERATIONS[name].as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE))
    @settings(
        max_examples=NUM_EXAMPLES // 2,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case):
        assume("//" not in case.formatted_path and not case.formatted_path.endswith("/."))
        # An empty list is no parameter on the wire, and the token that a case leaves out is sent all the same.
        assume(not any(value in ([], {}, None) for value in (case.query or {}).values()))
        assume(not is_wrong_by_headers_alone(case))
        checks = [*CHECKS, negative_data_rejection]
        case.call_and_validate(base_url=plane, session=session, headers=HEADERS, checks=checks)

    ask()


def test_every_operation_of_the_document_is_asked():
    """What is left out here is in nobody's test."""
    documented = {f"{method.upper()} {path}" for path, of in SCHEMA.raw_schema["paths"].items() for method in of}
    assert set(OPERATIONS) == documented
    assert documented >= HAS_MORE_RULES


def test_the_document_is_valid_openapi(plane):
    """What is served is what was tested, and a tool can read it."""
    served = httpx.get(f"{plane}/admin/v1/openapi.json", headers=HEADERS).json()
    assert json.loads(json.dumps(openapi(ENDPOINTS, served["info"]["version"]))) == served
    assert {found.ok().path for found in schemathesis.openapi.from_dict(served).get_all_operations()} == set(
        served["paths"]
    )
