"""The control socket's application: what the supervisor and the admin plane may ask and order."""

import json
import re
import shutil
from pathlib import Path

import httpx
import pytest

from gateway import control as control_module
from gateway.ledger_file import LedgerFile
from observability.gauges import READ_AT_SCRAPE
from tests.gateway.kit import MODEL, chat


class Socket:
    """Talks to a gateway's control app, without a socket."""

    def __init__(self, gateway):
        self.gateway = gateway
        transport = httpx.ASGITransport(gateway.gateway.control)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://control")

    async def ask(self, method, path, body=None):
        """(status, answer)."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        answer = await self.client.request(method, path, content=content)
        return answer.status_code, answer.json()


@pytest.fixture
async def control(launch):
    """The control app of a gateway with two replicas."""
    socket = Socket(await launch(engines=2))
    async with socket.client:
        yield socket


def explain(gateway, **changes):
    """A dry run's body."""
    return {"request": chat("hi"), "project_id": gateway.project, **changes}


def announced(name, **changes):
    """An announcement of one worker."""
    one = {"name": name, "model": "m2", "engine": "warmlane", "url": "http://127.0.0.1:9", "seats": 2, **changes}
    return {"replicas": [one]}


async def test_statistics_are_zero_when_quiescent(control):
    """Everything under `in_flight`, before and after a request."""
    for _ in range(2):
        status, answer = await control.ask("GET", "/statistics")
        assert status == 200
        assert set(answer["in_flight"].values()) == {0}
        await control.gateway.post(chat())
        await control.gateway.until_quiet()
    assert answer["remembered"] == 1
    assert answer["replicas"] == 2
    assert answer["tasks"] >= 1


async def test_a_finished_request_is_found_with_its_receipt(control):
    """By our id."""
    got = await control.gateway.post(chat())
    await control.gateway.until_recorded(1)
    request_id = got.header("x-request-id")
    status, record = await control.ask("GET", f"/requests/{request_id}")
    assert (status, record["outcome"], record["model"]) == (200, "finished", MODEL)
    status, receipt = await control.ask("GET", f"/requests/{request_id}/receipt")
    assert (status, receipt["request_id"], receipt["chosen"]) == (200, request_id, record["replica"])
    assert receipt["actual"]["outcome"] == "finished"
    assert {candidate["replica"] for candidate in receipt["candidates"]} == {"r1", "r2"}


async def test_a_request_that_was_never_routed_has_a_record_and_no_receipt(control):
    """A 400, for one."""
    got = await control.gateway.post(chat(n=0))
    await control.gateway.until_recorded(1)
    request_id = got.header("x-request-id")
    assert (await control.ask("GET", f"/requests/{request_id}"))[1]["status"] == 400
    assert (await control.ask("GET", f"/requests/{request_id}/receipt"))[0] == 404


@pytest.mark.parametrize("path", ["/requests/req_x", "/requests/req_x/receipt"])
async def test_an_unknown_request_is_404(control, path):
    """With OpenAI's body."""
    status, answer = await control.ask("GET", path)
    assert (status, answer["error"]["code"]) == (404, "not_found")


async def test_replicas_are_drained_and_resumed_by_name(control):
    """And shown as this gateway sees them."""
    status, drained = await control.ask("POST", "/replicas/r1/drain")
    assert (status, drained["state"]) == (200, "draining")
    status, shown = await control.ask("GET", "/replicas")
    assert {one["name"]: one["state"] for one in shown["data"]} == {"r1": "draining", "r2": "ready"}
    assert set(shown["data"][0]["in_flight"]) == {"interactive", "standard", "bulk"}
    assert (await control.ask("POST", "/replicas/r1/resume"))[1]["state"] == "ready"
    assert (await control.ask("POST", "/replicas/none/drain"))[0] == 404


async def test_the_fleet_is_replaced_as_a_whole(control):
    """What the supervisor says lives, lives; names may hold a slash."""
    assert await control.ask("PUT", "/fleet", announced("pod/a")) == (200, {"replicas": 3})
    assert (await control.ask("POST", "/replicas/pod/a/drain"))[1]["state"] == "draining"
    assert (await control.ask("POST", "/replicas/pod%2Fa/resume"))[1]["state"] == "ready"
    assert await control.ask("PUT", "/fleet", {"replicas": []}) == (200, {"replicas": 2})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        {"replicas": [5]},
        announced("w", seats=0),
        announced("w", seats=True),
        announced("w", nosuch=1),
        announced("w", engine="hal"),
        announced("w", url="x"),
        announced("r1"),
    ],
)
async def test_a_bad_announcement_is_refused_as_a_whole(control, body):
    """With a sentence."""
    status, answer = await control.ask("PUT", "/fleet", body)
    assert status == 400
    assert answer["error"]["message"]
    assert (await control.ask("GET", "/statistics"))[1]["replicas"] == 2


async def test_a_dry_run_says_where_a_request_would_go_and_changes_nothing(control):
    """The same decision as the real one."""
    status, receipt = await control.ask("POST", "/routes/explain", explain(control.gateway))
    assert (status, receipt["request_id"]) == (200, "dry-run")
    assert receipt["chosen"] in {"r1", "r2"}
    assert (await control.ask("GET", "/statistics"))[1]["shadow_nodes"] == 0
    got = await control.gateway.post(chat("hi"))
    await control.gateway.until_recorded(1)
    record = (await control.ask("GET", f"/requests/{got.header('x-request-id')}"))[1]
    assert record["replica"] == receipt["chosen"]


async def test_a_dry_run_of_a_message_goes_where_the_chat_that_it_is_would(control):
    """Surfaces of another language have no replicas of their own."""
    of_chat = (await control.ask("POST", "/routes/explain", explain(control.gateway)))[1]["chosen"]
    body = explain(control.gateway, surface="/v1/messages", request=chat("hi", max_tokens=1))
    assert (await control.ask("POST", "/routes/explain", body))[1]["chosen"] == of_chat


async def test_a_dry_run_without_a_replica_says_why(control):
    """In words, and for each replica."""
    for name in ("r1", "r2"):
        await control.ask("POST", f"/replicas/{name}/drain")
    status, receipt = await control.ask("POST", "/routes/explain", explain(control.gateway, lane="bulk"))
    assert (status, receipt["chosen"]) == (200, None)
    assert "ready" in receipt["reason"]
    assert {one["replica"] for one in receipt["candidates"]} == {"r1", "r2"}


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"project_id": "none"}, 404),
        ({"lane": "fast"}, 400),
        ({"surface": "/v1/nosuch"}, 400),
        ({"request": {}}, 400),
        ({"request": {"model": "none", "messages": [{"role": "user", "content": "x"}]}}, 404),
        ({"nosuch": 1}, 400),
        ({"project_id": 5}, 400),
    ],
)
async def test_a_bad_dry_run_is_refused(control, changes, status):
    """As the real request would be."""
    got, answer = await control.ask("POST", "/routes/explain", explain(control.gateway, **changes))
    assert got == status
    assert answer["error"]["message"]


async def test_a_dry_run_nested_without_end_is_refused(control):
    """A client's body is passed on here."""
    body = b'{"project_id":"p","request":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert (await control.ask("POST", "/routes/explain", body))[0] == 400


async def test_the_store_is_read_when_told(control):
    """A nudge, so that a revocation holds at once."""
    status, answer = await control.ask("POST", "/directory/refresh")
    assert (status, answer["changed"]) == (200, False)
    await control.gateway.store.create_project("new", control.gateway.organization)
    assert (await control.ask("POST", "/directory/refresh"))[1]["changed"] is True


async def test_metrics_hold_finished_requests_and_live_replicas_only(control):
    """P40: series of removed replicas are dropped."""
    await control.ask("PUT", "/fleet", announced("w9"))
    await control.gateway.post(chat())
    await control.gateway.until_recorded(1)
    text = (await control.client.get("/metrics")).text
    assert f'warmlane_requests_total{{lane="interactive",model="{MODEL}",outcome="finished"}} 1.0' in text
    assert 'warmlane_replica_state{replica="w9",state="ready"} 1.0' in text
    await control.ask("PUT", "/fleet", {"replicas": []})
    assert "w9" not in (await control.client.get("/metrics")).text


async def test_the_queue_is_told_by_model_and_lane(control):
    """Empty when nobody waits."""
    assert await control.ask("GET", "/queue") == (200, {"waiting": {}, "total": 0})


@pytest.mark.parametrize("path", ["/", "/fleet/", "/replicas/r1", "/admin/v1/keys"])
async def test_nothing_else_is_there(control, path):
    """The socket has these routes and no others."""
    assert (await control.client.get(path, follow_redirects=False)).status_code in {404, 405, 307}


async def test_a_journal_that_lost_its_file_is_seen_in_the_numbers(control, tmp_path):
    """Also of a gateway that serves nobody just now: asking for the numbers is an occasion to look."""
    journal = LedgerFile(tmp_path / "ledger", "gateway-1")
    control.gateway.parts.journal = journal
    shutil.rmtree(tmp_path / "ledger")
    journal.num_dropped = 4
    assert (await control.ask("GET", "/statistics"))[1]["ledger"] == {"dropped": 4, "restored": 1}
    lines = (await control.client.get("/metrics")).text.splitlines()
    assert {"warmlane_ledger_dropped_total 4.0", "warmlane_ledger_restored_total 1.0"} <= set(lines)
    journal.close()


def test_every_name_that_is_read_at_a_scrape_is_explained_and_no_other():
    """Whoever adds a gauge says what it means, for the help text and the reference page."""
    sources = (file.read_text() for file in Path(control_module.__file__).parent.rglob("*.py"))
    yielded = {name for source in sources for name in re.findall(r'yield "(warmlane_\w+)"', source)}
    assert yielded == {one.name for one in READ_AT_SCRAPE}
