"""On the path of a request: noted before it is sent, settled at its end, and not sent if it cannot be noted."""

import asyncio

import pytest

from gateway.errors import Refused
from gateway.ledger_file import LedgerFile, _full
from gateway.ledger_replay import LedgerReader
from tests.gateway.kit import MODEL, chat
from tests.scripted_engine import answer, dropped, status


class Journal:
    """Remembers what it was told, in order; `is_full` refuses what is new."""

    def __init__(self):
        self.told = []
        self.open = {}
        self.is_full = False
        self.fault = None
        self.num_dropped = self.num_restored = 0

    @property
    def num_open(self):
        return len(self.open)

    def check(self):
        return True

    def intend(self, intent):
        if self.is_full:
            raise _full()
        self.told.append(("intend", intent.request_id))
        assert intent.request_id not in self.open
        self.open[intent.request_id] = intent

    def settle(self, record):
        self.told.append(("settle", record.request_id))
        self.open.pop(record.request_id, None)


def give(gateway, journal):
    """Let this gateway write there."""
    object.__setattr__(gateway.parts, "journal", journal)
    gateway.parts.recorder._journal = journal


@pytest.fixture
async def gateway(launch):
    running = await launch(engines=2)
    running.journal = Journal()
    give(running, running.journal)
    return running


async def test_it_is_noted_before_it_is_sent_and_settled_at_its_end(gateway):
    """The intent says who pays, and what was held back for it."""
    held = asyncio.Event()
    gateway.script(answer("Hi", gates={0: held}))
    client = await gateway.start(chat())
    await gateway.received()
    (intent,) = gateway.journal.open.values()
    assert (intent.project, intent.organization, intent.model) == (gateway.project, gateway.organization, MODEL)
    assert (intent.lane, intent.surface) == ("interactive", "/v1/chat/completions")
    assert intent.reserved_tokens > 0
    assert gateway.in_flight["intents"] == 1
    held.set()
    found = await client.answer()
    await gateway.until_recorded(1)
    request_id = found.header("x-request-id")
    assert gateway.journal.told == [("intend", request_id), ("settle", request_id)]


async def test_a_retry_is_not_noted_a_second_time(gateway):
    """One request, one row, however many engines it took."""
    gateway.script(dropped(), answer("Hi"))
    found = await gateway.post(chat())
    assert found.status == 200
    (record,) = await gateway.until_recorded(1)
    assert record.attempts == 2
    assert [step for step, _ in gateway.journal.told] == ["intend", "settle"]


async def test_what_is_refused_before_its_turn_is_settled_alone(gateway):
    """There is nothing to recover: no engine was asked."""
    await gateway.limit(gateway.project, '{"rpm": 0}')
    assert (await gateway.post(chat())).status == 429
    await gateway.until_recorded(1)
    assert [step for step, _ in gateway.journal.told] == ["settle"]


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_what_cannot_be_noted_is_not_sent(gateway, is_streaming):
    """503 with a time to come back; no engine is asked and no limit used up."""
    await gateway.limit(gateway.project, '{"rpm": 1}')
    gateway.journal.is_full = True
    refused = await gateway.post(chat(stream=is_streaming))
    assert (refused.status, refused.code, refused.header("retry-after")) == (503, "ledger_full", "1")
    assert gateway.engines.requests == []
    (record,) = await gateway.until_recorded(1)
    assert (record.outcome, record.attempts) == ("shed", 0)
    gateway.journal.is_full = False
    assert (await gateway.post(chat())).status == 200


@pytest.mark.parametrize("ending", ["left", "failed", "engine refused"])
async def test_every_ending_is_settled(gateway, ending):
    """Nothing stays open, whoever ended it."""
    held = asyncio.Event()
    gateway.script(
        *{"left": [answer("Hi", gates={0: held})], "failed": [status(500)] * 9, "engine refused": [status(400)]}[ending]
    )
    client = await gateway.start(chat())
    if ending == "left":
        await gateway.received()
        client.close()
    else:
        await client.answer()
    await gateway.until_recorded(1)
    assert gateway.journal.num_open == 0
    assert [step for step, _ in gateway.journal.told] == ["intend", "settle"]


async def test_the_file_says_what_happened(gateway, tmp_path):
    """The real file on the real path: rows with the engine's own numbers."""
    journal = LedgerFile(tmp_path / "ledger", "gateway-1")
    give(gateway, journal)
    gateway.script(answer("Hi", "there", prompt_tokens=12, cached=4))
    found = await gateway.post(chat(stream=True))
    assert found.is_done
    await gateway.until_recorded(1)
    reader = LedgerReader(next((tmp_path / "ledger").iterdir()))
    batch = reader.read()
    (row,) = batch.rows
    assert batch.begun == ()
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (12, 4, 2)
    assert (row.charged_tokens, row.outcome, row.request_id) == (14, "finished", found.header("x-request-id"))
    give(gateway, Journal())
    journal.close()


def test_the_refusal_says_why():
    """For the client and for whoever looks at the log."""
    assert isinstance(_full(), Refused)
    assert "no room" in _full().problem.message
