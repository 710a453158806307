"""What the admin plane passes on from the gateways, and what it hides of the settings."""

import httpx
import pytest

from gateway.admin.app import create_admin_app
from gateway.admin.control_client import ControlError
from gateway.admin.operations import redacted
from gateway.admin.wire import ReloadedBody
from gateway.settings import ConfigError


async def test_what_a_gateway_knows_is_passed_on(admin, gateway):
    """The admin plane adds nothing to and takes nothing from a gateway's answer."""
    for path, inner in [
        ("replicas", "/replicas"),
        ("queue", "/queue"),
        ("statistics", "/statistics"),
        ("requests/req_1", "/requests/req_1"),
        ("requests/req_1/receipt", "/requests/req_1/receipt"),
    ]:
        gateway.will("GET", inner, {"from": inner, "in_flight": {"requests": 0}})
        answer = await admin.get(f"/admin/v1/{path}")
        assert (answer.status_code, answer.json()) == (200, {"from": inner, "in_flight": {"requests": 0}})
        assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("order", ["drain", "resume"])
async def test_a_replica_is_drained_and_resumed_by_name(admin, gateway, order):
    """A name may hold a slash; it must reach the gateway as one segment."""
    gateway.will("POST", f"/replicas/pool%2Fa%2E1/{order}", {"name": "pool/a.1", "state": order})
    answer = await admin.post(f"/admin/v1/replicas/pool/a.1/{order}")
    assert (answer.status_code, answer.json()["name"]) == (200, "pool/a.1")


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "requests/req_x", "unknown_request"),
        ("GET", "requests/req_x/receipt", "unknown_request"),
        ("POST", "replicas/none/drain", "unknown_replica"),
        ("POST", "replicas/none/resume", "unknown_replica"),
    ],
)
async def test_what_no_gateway_knows_is_404(admin, method, path, code):
    """Unknown is an answer, not an outage."""
    answer = await admin.request(method, f"/admin/v1/{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, code)


async def test_a_request_id_cannot_leave_its_place(admin, gateway):
    """Dots in an id must not climb to another control route."""
    assert (await admin.get("/admin/v1/requests/%2e%2e")).status_code == 404
    assert gateway.asked[-1][:2] in {("GET", "/requests/%2E%2E"), ("POST", "/directory/refresh")} or not gateway.asked


async def test_explaining_a_route_passes_the_body_and_the_status_on(admin, gateway):
    """A dry run may be refused by the gateway; its words are the answer."""
    gateway.will("POST", "/routes/explain", {"error": {"message": "unknown model"}}, status=404)
    answer = await admin.post("/admin/v1/routes/explain", content=b'{"model":"m"}')
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, "unknown model")
    assert gateway.asked[-1] == ("POST", "/routes/explain", b'{"model":"m"}')


async def test_a_reload_tells_what_it_found(store, control):
    """What changed is in force; what needs a restart is told, not done; a bad file is refused with every mistake."""
    found = [
        ReloadedBody(("replicas",), ("gateway.port",)),
        ConfigError("f.toml: [gateway] unknown key"),
        ControlError("x"),
    ]

    async def reload():
        one = found.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    app = create_admin_app(store, control, "t" * 20, reload=reload)
    headers = {"authorization": "Bearer " + "t" * 20}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a", headers=headers) as client:
        done, bad, away = [await client.post("/admin/v1/config/reload") for _ in range(3)]
    assert (done.status_code, done.json()) == (200, {"changed": ["replicas"], "needs_restart": ["gateway.port"]})
    assert (bad.status_code, bad.json()["error"]["code"]) == (400, "invalid_config")
    assert bad.json()["error"]["message"] == "f.toml: [gateway] unknown key"
    assert (away.status_code, away.json()["error"]["code"]) == (503, "gateway_unavailable")


async def test_nothing_is_reloaded_where_there_is_no_file(admin):
    """The settings of a test, say."""
    assert (await admin.post("/admin/v1/config/reload")).json() == {"changed": [], "needs_restart": []}


async def test_metrics_are_prometheus_text(admin, gateway):
    """A scraper reads them with the admin token."""
    gateway.will("GET", "/metrics", "# TYPE a counter\na_total 1.0\n")
    answer = await admin.get("/metrics")
    assert answer.text == "# TYPE a counter\na_total 1.0\n"
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


@pytest.mark.parametrize("path", ["/admin/v1/statistics", "/admin/v1/replicas", "/admin/v1/requests/x", "/metrics"])
async def test_a_gateway_that_fails_is_503_with_a_sentence(admin, gateway, path):
    """An operator must see that it is the gateway, and when to try again."""
    for inner in ("/statistics", "/replicas", "/requests/x", "/metrics"):
        gateway.will("GET", inner, status=500)
    answer = await admin.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "gateway_unavailable")
    assert answer.headers["retry-after"] == "1"


async def test_the_settings_are_shown_without_secrets(admin):
    """Neither a token nor a password inside a URL leaves the process."""
    answer = await admin.get("/admin/v1/config")
    assert "hunter2" not in answer.text
    assert answer.json() == {
        "store": {"url": "redis://***@host/0"},
        "gateway": {"port": 8080, "admin_token": "***"},
    }


def test_redaction_goes_by_name_and_leaves_the_rest():
    """A name of an environment variable is no secret, nor are counts of tokens."""
    plain = {"api_key_env": "OPENAI_KEY", "context_tokens": 4096, "names": ["a"], "admin_token": None}
    assert redacted(plain) == plain
    assert redacted({"replicas": ({"api_key": "x", "server_secret": "y"},)}) == {
        "replicas": [{"api_key": "***", "server_secret": "***"}]
    }


class Kept:
    """Whoever keeps the ledger, with fixed numbers."""

    def statistics(self):
        """By name."""
        return {"ledger": {"waiting": 7, "files": 2, "restored": 1}, "config": {"generation": 2, "fault": None}}

    def metrics(self):
        """The same."""
        yield "warmlane_ledger_waiting", {}, 7
        yield "warmlane_ledger_restored_total", {}, 1


async def test_what_the_ledger_has_not_taken_stands_beside_what_gateways_count(store, control, gateway):
    """One place to look: rows that wait, refusals that were dropped, files that were made again on either side."""
    gateway.will("GET", "/statistics", {"in_flight": {"requests": 0}, "ledger": {"dropped": 3, "restored": 1}})
    gateway.will(
        "GET", "/metrics", "# TYPE warmlane_ledger_restored_total counter\nwarmlane_ledger_restored_total 1.0\n"
    )
    app = create_admin_app(store, control, "t" * 20, counted=[Kept()])
    headers = {"authorization": "Bearer " + "t" * 20}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a", headers=headers) as client:
        found = (await client.get("/admin/v1/statistics")).json()
        assert found == {
            "in_flight": {"requests": 0},
            "ledger": {"dropped": 3, "restored": 2, "waiting": 7, "files": 2},
            "config": {"generation": 2, "fault": None},
        }
        lines = (await client.get("/metrics")).text.splitlines()
    assert {"warmlane_ledger_waiting 7.0", "warmlane_ledger_restored_total 2.0"} <= set(lines)
