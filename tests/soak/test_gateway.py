"""That the gateway's soak notices what it looks for, and that a gateway holds for a few seconds."""

import asyncio
import contextlib
import re
import sqlite3
from random import Random

import httpx
import pytest

from tests.soak.faulty_proxy import FaultyProxy
from tests.soak.gateway import prepared
from tests.soak.gateway_asking import Ending, ask, read_stream
from tests.soak.gateway_checks import compare_endings, compare_ledger, compare_sums, outcomes_counted
from tests.soak.gateway_plot import chart
from tests.soak.gateway_report import MUST_HOLD, Report, Sample
from tests.soak.gateway_tenants import admin_client
from tests.soak.gateway_traffic import LANES, TENANTS, Ask, Traffic

WORDS = {
    "key": "k",
    "status": 200,
    "prompt_tokens": 9,
    "cached_tokens": 0,
    "completion_tokens": 2,
    "charged_tokens": 11,
}
RECORD = {"request_id": "r", "client_request_id": "c", "outcome": "finished", **WORDS}
ROW = {name: value for name, value in RECORD.items() if name not in ("client_request_id", "key")}
USAGE = {"requests": 1, "prompt_tokens": 9, "cached_tokens": 0, "completion_tokens": 2, "charged_tokens": 11}


def ended(**changes):
    fields = {"client_id": "c", "request_id": "r", "status": 200, "seen": "done", "prompt_tokens": 9} | changes
    return Ending("chat", **fields)


@pytest.mark.parametrize(
    ("ending", "records"),
    [
        (ended(), [RECORD]),
        (ended(seen="left", request_id=None), []),
        (ended(seen="left"), [{**RECORD, "outcome": "client_gone"}]),
        (ended(status=429), [{**RECORD, "outcome": "refused"}]),
        (ended(status=429), [{**RECORD, "outcome": "shed", "reason": "replica_busy"}]),
        (ended(seen="broken"), [{**RECORD, "outcome": "timed_out"}]),
        (ended(num_sent=2, seen="answered twice", request_id=None), [RECORD, RECORD]),
    ],
)
def test_what_client_and_record_tell_alike_is_fine(ending, records):
    """Answered, left, refused, broken off, two at once."""
    assert compare_endings([ending], records) == []


@pytest.mark.parametrize(
    ("ending", "records"),
    [
        (ended(), []),
        (ended(), [RECORD, RECORD]),
        (ended(), [{**RECORD, "outcome": "client_gone"}]),
        (ended(), [{**RECORD, "prompt_tokens": 8}]),
        (ended(status=503), [RECORD]),
        (ended(status=429), [{**RECORD, "outcome": "shed"}]),
        (ended(status=500), [{**RECORD, "outcome": "bug"}]),
        (ended(seen="broken"), [RECORD]),
        (ended(wrong=["a stream with 2 ends"]), [RECORD]),
        (ended(num_sent=2, seen="answered twice", request_id=None), [RECORD]),
        (ended(client_id="d", seen="left"), [RECORD]),
    ],
)
def test_no_outcome_or_two_or_another_is_a_violation(ending, records):
    """Lost, twice, of another kind, other tokens, of nobody."""
    assert compare_endings([ending], records)


@pytest.mark.parametrize(
    ("records", "rows", "is_fine"),
    [
        ([RECORD], [ROW], True),
        ([{**RECORD, "key": ""}], [], True),
        ([RECORD], [], False),
        ([], [ROW], False),
        ([RECORD], [{**ROW, "completion_tokens": 3}], False),
        ([RECORD], [{**ROW, "outcome": "refused"}], False),
        ([RECORD, RECORD], [ROW], False),
    ],
)
def test_a_record_without_its_row_is_a_violation(records, rows, is_fine):
    """Or a row of nobody, or one that says something else; callers without a key have none."""
    assert (compare_ledger(records, rows) == []) is is_fine


def test_sums_that_differ_are_violations():
    """Of the usage's tokens, of its requests, of the metrics' outcomes."""
    text = '# HELP x\nwarmlane_requests_total{lane="bulk",model="m",outcome="finished"} 1.0\nother{outcome="x"} 4\n'
    counted = outcomes_counted(text)
    assert compare_sums([ROW], [USAGE], counted, [RECORD]) == []
    assert compare_sums([ROW], [{**USAGE, "prompt_tokens": 10}], counted, [RECORD])
    assert compare_sums([ROW], [{**USAGE, "requests": 2}], counted, [RECORD])
    assert compare_sums([ROW], [USAGE], {"finished": 2.0}, [RECORD])


@pytest.mark.parametrize(
    ("text", "seen", "is_fine"),
    [
        ('data: {"usage": {"prompt_tokens": 3}}\n\ndata: [DONE]\n\n', "done", True),
        ('data: {"type": "message_stop"}\n\n', "done", True),
        ('data: {"error": {"code": "x"}}\n\n', "broken", True),
        ('data: {"type": "error", "message": "x"}\n\n', "broken", True),
        ('data: {"choices": []}\n\n', "done", False),
        ("data: [DONE]\n\ndata: [DONE]\n\n", "done", False),
    ],
)
def test_a_stream_must_end_once_or_tell_of_an_error(text, seen, is_fine):
    """In each surface's words."""
    ending = Ending("chat")
    read_stream(text, ending)
    assert (ending.seen, ending.wrong == []) == (seen, is_fine)


@pytest.mark.parametrize("name", ["rss_mb", "files", "tasks"])
def test_growth_is_a_violation_and_noise_is_not(name):
    """Of memory, files and tasks, by the line through the rests behind the warm-up."""
    for per_rest, holds in ((0, True), (4, False)):
        fields = {"rss_mb": 90.0, "files": 30, "sockets": 0, "in_flight": 0, "tasks": 20}
        report = Report(1, 20)
        report.samples = [
            Sample(at_s=60.0 * at, is_rest=True, **{**fields, name: fields[name] + at % 3 + per_rest * at})
            for at in range(20)
        ]
        report.judge()
        assert report.holds is holds
        assert ("FAILED" in report.table()) is not holds
        assert chart(report.samples).count("<circle") == 80


def test_a_run_without_a_rest_does_not_pass():
    """Nothing was looked at."""
    report = Report(1, 1)
    report.judge()
    assert set(report.violations) == {"run to its end"}


def test_traffic_is_of_every_kind_and_the_same_for_a_seed():
    """Every tenant, lane and surface, odd requests, clients that leave, go on, read slowly."""
    one, other = Traffic(3), Traffic(3)
    asked = [one.next({"open": "resp_1"}) for _ in range(1500)]
    assert asked == [other.next({"open": "resp_1"}) for _ in range(1500)]
    assert {entry.tenant for entry in asked} == {*TENANTS, None}
    assert {entry.lane for entry in asked} == set(LANES)
    assert len({entry.kind for entry in asked}) == 18
    goes_on = [entry for entry in asked if isinstance(entry.body, dict) and "previous_response_id" in entry.body]
    assert {entry.tenant for entry in goes_on} == {"open"}
    assert any(entry.leaves_after_s for entry in asked)
    assert any(entry.pause_s for entry in asked)


async def faulty(fault):
    """What a client gets through a proxy of this fault from an engine that answers `hello` in 4 kB."""

    class Engine(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, _data):
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4000\r\n\r\n" + b"hello".ljust(4000))

    class Chosen(Random):
        def choice(self, seq):
            return fault

    engine = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", 0)
    proxy = FaultyProxy(engine.sockets[0].getsockname()[1], Chosen(1), 1.0 if fault else 0.0)
    await proxy.start()
    try:
        async with httpx.AsyncClient(timeout=0.2) as client:
            answer = await client.post(f"http://127.0.0.1:{proxy.port}/", content=b"")
            return answer.status_code
    except httpx.HTTPError as error:
        return type(error).__name__
    finally:
        await proxy.stop()
        engine.close()


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("", "200"),
        ("429", "429"),
        ("503", "503"),
        ("garbage", "RemoteProtocolError"),
        ("dropped", "RemoteProtocolError|ReadError"),
        ("too short", "RemoteProtocolError"),
        ("cut", "RemoteProtocolError|ReadError"),
        ("reset", "ReadError"),
        ("stalled", "ReadTimeout"),
        ("silent", "ReadTimeout"),
    ],
)
async def test_the_proxy_does_what_networks_do(fault, seen):
    """Passed on, answered by itself, ended, held."""
    assert re.fullmatch(seen, str(await faulty(fault)))


async def test_an_answer_without_an_end_is_told():
    """A connection that breaks is a violation for the client, unless it left."""

    def broken(_request):
        raise httpx.ReadError("gone")

    async with httpx.AsyncClient(transport=httpx.MockTransport(broken), base_url="http://g") as client:
        ending = await ask(client, Ask("chat", "/v1/chat/completions", {}, "open", "bulk"), "k")
    assert ending.wrong == ["ReadError: gone"]


async def test_a_gateway_holds_for_a_few_seconds_and_what_is_leaked_then_is_found(tmp_path):
    """Two real engines that fail: every claim is looked at and holds; then a socket is left open and a row is lost."""
    report = Report(7, 3 / 60)
    async with prepared(report, tmp_path, 2, 4) as watched:
        await watched.run(8, 3.0, Random(7))
        report.judge()
        assert report.holds, report.table()
        assert report.rows > 10
        assert report.table().count("held  ") == len(MUST_HOLD)
        watched.patience_s = 0.5
        _, writer = await asyncio.open_connection("127.0.0.1", watched.port)
        with contextlib.closing(sqlite3.connect(tmp_path / "home" / "warmlane.ledger.sqlite3")) as ledger, ledger:
            ledger.execute("DELETE FROM requests WHERE position = (SELECT MIN(position) FROM requests)")
        async with admin_client(watched.ready) as admin:
            await watched.rest(admin)
        writer.close()
    assert set(report.violations) == {"no client socket at rest", "one ledger row a request", "sums equal"}
