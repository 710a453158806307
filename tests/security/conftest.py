"""One real Warmlane for all security tests: gateway, admin plane, a fake worker, two organisations, known secrets."""

import hashlib
import http.client
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

from policies.keys import cache_salt
from tests.warmlane_process import PATIENCE_S, commands, until

ENGINE_KEY = "sk-engine-9f3c7d1be2a84c55"
ADMIN_TOKEN = "adm-51c0ffee77d2448e9b01"
CONFIG = """
[telemetry]
log_level = "debug"
[[workers]]
model = "fake-model"
engine = "fake"
max_seqs = 8
[[replicas]]
name = "hosted"
model = "fake-model"
engine = "openai"
url = "http://127.0.0.1:9"
api_key_env = "SECURITY_TEST_ENGINE_KEY"
"""


@dataclass
class Tenant:
    """A project with a key."""

    organization: str
    project: str
    key_id: str
    key: str


@dataclass
class Answer:
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Warmlane:
    """A running system and everything in it that nobody may be shown."""

    running: object
    home: object
    alder: Tenant
    birch: Tenant
    prompts: list[str] = field(default_factory=list)

    @property
    def public(self):
        """(host, port) of the data plane."""
        parts = urlsplit(self.running.fields["url"])
        return parts.hostname, parts.port

    @property
    def admin(self):
        """(host, port) of the admin plane."""
        parts = urlsplit(self.running.fields["admin"])
        return parts.hostname, parts.port

    @property
    def secrets(self):
        """Every secret text that exists in this system, by what it is."""
        with closing(sqlite3.connect(self.home / "warmlane.sqlite3")) as store:
            [(secret,)] = store.execute("SELECT server_secret FROM installation").fetchall()
        tenants = {"alder": self.alder, "birch": self.birch}
        keys = {"demo": self.running.fields["key"]} | {name: one.key for name, one in tenants.items()}
        return {
            "server secret": secret.hex(),
            "admin token": ADMIN_TOKEN,
            "engine key": ENGINE_KEY,
            **{f"key of {name}": key for name, key in keys.items()},
            **{f"digest of {name}": hashlib.sha256(key.encode()).hexdigest() for name, key in keys.items()},
            **{f"salt of {name}": cache_salt(secret, one.project) for name, one in tenants.items()},
        }


def ask(address, method, path, headers=(), body=b""):
    """One request with exactly this path and these headers, on a connection of its own."""
    with closing(http.client.HTTPConnection(*address, timeout=PATIENCE_S)) as connection:
        return ask_on(connection, method, path, headers, body)


def ask_on(connection, method, path, headers=(), body=b""):
    """The same on a connection that is kept."""
    connection.putrequest(method, path, skip_accept_encoding=True)
    for name, value in headers:
        connection.putheader(name, value)
    if body or method in {"POST", "PUT", "PATCH", "DELETE"}:
        connection.putheader("content-length", str(len(body)))
    connection.endheaders(body or None)
    answer = connection.getresponse()
    return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())


def _tenant(running, name):
    organization = running.admin("/organizations", "POST", {"name": name})["id"]
    project = running.admin("/projects", "POST", {"name": name, "organization_id": organization})["id"]
    key = running.admin("/keys", "POST", {"name": f"{name}-laptop", "project_id": project})
    return Tenant(organization, project, key["id"], key["secret"])


IN_LEDGER = "/admin/v1/usage/requests"  # where it counts in what usage tells, and with it all that ended before


def record_of(system, request_id, where="/admin/v1/requests"):
    """The record of a request, once it is written."""

    def found():
        answer = ask(system.admin, "GET", f"{where}/{request_id}", bearer(ADMIN_TOKEN))
        return answer if answer.status == 200 else None

    return until(found)


def bearer(credential):
    """The header that carries a key or token."""
    return [("authorization", f"Bearer {credential}")]


@pytest.fixture(scope="package")
def system(tmp_path_factory):
    """`warmlane up` at log level debug; its end is clean."""
    home = tmp_path_factory.mktemp("security") / "home"
    env = {"WARMLANE_ADMIN_TOKEN": ADMIN_TOKEN, "SECURITY_TEST_ENGINE_KEY": ENGINE_KEY}
    with commands(home) as start:
        running = start("up", config=CONFIG, env=env)
        running.until_ready()
        yield Warmlane(running, home, _tenant(running, "alder"), _tenant(running, "birch"))
        assert running.end() == 0, running.stderr
