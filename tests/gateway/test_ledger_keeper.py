"""The supervisor takes what gateways wrote into the ledger: once, whoever is killed when, and however often it is tried."""

import asyncio
import os
import shutil
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gateway.ledger_file import LedgerFile
from gateway.ledger_keeper import POLL_S, LedgerKeeper, keeping
from gateway.ledger_lines import Intent, encode
from gateway.ledger_replay import READ_BYTES, LedgerReader
from observability.records import RequestRecord
from policies.ledger import Group, LedgerRow, Retention, Wanted
from policies.sqlite_ledger import SqliteLedger
from policies.store import StoreError

NOW = 1_800_000_000.0
KEEP = Retention(30, 400)
ALL = Wanted(0, int(NOW * 2))


def intent(name):
    """A request of the project proj_a that reserved 50 tokens."""
    return Intent(f"req_{name}", NOW, "org_a", "proj_a", "key_a", "small-a", "bulk", "/v1/completions", 50)


def record(name):
    """Its end: 30 tokens were charged."""
    return RequestRecord(
        request_id=f"req_{name}",
        started_at=NOW,
        surface="/v1/completions",
        model="small-a",
        organization="org_a",
        project="proj_a",
        key="key_a",
        lane="bulk",
        outcome="finished",
        status=200,
        duration_s=1.0,
        charged_tokens=30,
    )


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "ledger"


@pytest.fixture
async def ledger(tmp_path):
    async with await SqliteLedger.open(tmp_path / "ledger.sqlite3") as opened:
        yield opened


@pytest.fixture
def journal(folder):
    opened = LedgerFile(folder, "gateway-1")
    yield opened
    opened.close()


@pytest.fixture
def keeper(folder, ledger):
    return LedgerKeeper(folder, ledger, KEEP, unix=lambda: NOW + 100)


class Failing:
    """A ledger that fails at the next calls of `add`, after or before it kept the rows."""

    num_restored = 0

    def __init__(self, ledger, *, keeps):
        self._ledger = ledger
        self._keeps = keeps
        self.num_failures = 1

    async def add(self, rows):
        if self.num_failures and rows:
            self.num_failures -= 1
            if self._keeps:
                await self._ledger.add(rows)
            raise StoreError("away")
        return await self._ledger.add(rows)


async def charged(ledger):
    """What the project was charged, and for how many requests."""
    rows = (await ledger.usage(ALL, Group.PROJECT)).rows
    return (rows[0].totals.charged_tokens, rows[0].totals.requests) if rows else (0, 0)


async def test_what_a_living_gateway_settled_is_taken_at_once(keeper, ledger, journal, folder):
    """Usage is not late, and what is under way is nobody's charge yet."""
    journal.intend(intent(1))
    journal.intend(intent(2))
    journal.settle(record(1))
    await keeper.replay()
    assert await charged(ledger) == (30, 1)
    journal.settle(record(2))
    await keeper.replay()
    await keeper.replay()
    assert await charged(ledger) == (60, 2)
    assert len(list(folder.iterdir())) == 1


async def test_a_dead_gateways_open_requests_are_charged_once(keeper, ledger, journal, folder):
    """Its file is gone afterwards, and a row says that it was recovered."""
    journal.intend(intent(1))
    await keeper.replay()
    journal.intend(intent(2))
    journal.settle(record(2))
    journal.close()
    await keeper.replay()
    await keeper.replay()
    assert await charged(ledger) == (80, 2)
    row = await ledger.row("req_1")
    assert (row.recovered, row.charged_tokens, row.ended_at) == (True, 50, NOW + 100)
    assert list(folder.iterdir()) == []
    assert keeper.num_recovered == 1


async def test_an_end_that_cannot_be_read_is_charged_as_reserved_and_counted(keeper, ledger, journal, folder):
    """A row never vanishes in silence: once a fraction among the tokens made one do so."""
    broken = encode(record(1)).replace(b'"charged_tokens":30', b'"charged_tokens":30.5') + b"\n"
    journal.intend(intent(1))
    await keeper.replay()
    path = next(folder.iterdir())
    with path.open("ab") as file, capture_logs() as told:
        file.write(broken + b'{"request_id":7}\n?\n' + encode(record(2)) + b"\n")
        file.flush()
        await keeper.replay()
        await keeper.replay()
    assert keeper.num_unreadable == keeper.statistics()["ledger"]["unreadable"] == 3
    assert ("warmlane_ledger_unreadable_total", {}, 3) in list(keeper.metrics())
    assert [one["lines"] for one in told if one["event"] == "ledger.unreadable_lines"] == [3]
    assert await charged(ledger) == (80, 2)
    row = await ledger.row("req_1")
    assert (row.recovered, row.charged_tokens, row.ended_at) == (True, 50, NOW)


async def test_a_beginning_and_an_unreadable_end_in_one_piece_are_one_charge(keeper, ledger, journal, folder):
    """Also where the file is read for the first time, and again after a batch was not kept."""
    journal.intend(intent(1))
    path = next(folder.iterdir())
    with path.open("ab") as file:
        file.write(encode(record(1)).replace(b'"status":200', b'"status":"200"') + b"\n")
    failing = LedgerKeeper(folder, Failing(ledger, keeps=True), KEEP, unix=lambda: NOW)
    with pytest.raises(StoreError):
        await failing.replay()
    assert failing.num_unreadable == 0
    await failing.replay()
    await keeper.replay()
    assert (failing.num_unreadable, await charged(ledger)) == (1, (50, 1))


async def test_what_goes_on_in_a_new_file_is_not_recovered_from_the_old(keeper, ledger, folder):
    """A file that is full ends, its gateway does not."""
    journal = LedgerFile(folder, "gateway-1", max_file_bytes=700)
    journal.intend(intent("long"))
    for number in range(5):
        journal.intend(intent(number))
        journal.settle(record(number))
    await keeper.replay()
    assert await charged(ledger) == (150, 5)
    assert len(list(folder.iterdir())) == 1
    journal.settle(record("long"))
    journal.close()
    await keeper.replay()
    assert await charged(ledger) == (180, 6)
    assert keeper.num_recovered == 0


@pytest.mark.parametrize("keeps", [False, True])
async def test_a_ledger_that_fails_is_asked_again(folder, ledger, journal, keeps):
    """Whether or not it kept the rows before it failed, each is there once in the end."""
    journal.intend(intent(1))
    journal.intend(intent(2))
    journal.settle(record(2))
    keeper = LedgerKeeper(folder, Failing(ledger, keeps=keeps), KEEP)
    with pytest.raises(StoreError):
        await keeper.replay()
    journal.close()
    keeper._ledger.num_failures = 1
    with pytest.raises(StoreError):
        await keeper.replay()
    await keeper.replay()
    assert await charged(ledger) == (80, 2)
    assert list(folder.iterdir()) == []


async def test_two_who_replay_the_same_file_charge_once(folder, ledger, journal):
    """A gateway that starts replays what the supervisor may be replaying just then."""
    for number in range(50):
        journal.intend(intent(number))
    journal.close()
    first, second = (LedgerKeeper(folder, ledger, KEEP) for _ in range(2))
    await asyncio.gather(first.replay(only_dead=True), second.replay())
    assert await charged(ledger) == (2500, 50)
    assert first.num_recovered + second.num_recovered == 50


async def test_only_the_dead_are_replayed_for_a_gateway_that_starts(keeper, ledger, journal, folder):
    """The living are the supervisor's affair."""
    journal.settle(record(1))
    dead = LedgerFile(folder, "gateway-2")
    dead.settle(record(2))
    dead.close()
    await keeper.replay(only_dead=True)
    assert await charged(ledger) == (30, 1)


async def test_each_of_several_gateways_has_its_file(keeper, ledger, folder):
    """One dies, the others go on."""
    journals = [LedgerFile(folder, f"gateway-{number}") for number in range(4)]
    for number, journal in enumerate(journals):
        journal.intend(intent(number))
    journals[0].close()
    await keeper.replay()
    assert await charged(ledger) == (50, 1)
    for number, journal in enumerate(journals[1:], 1):
        journal.settle(record(number))
        journal.close()
    await keeper.replay()
    assert await charged(ledger) == (50 + 3 * 30, 4)


async def test_a_file_that_was_never_made_ready_goes(keeper, folder):
    """Its process was killed before anybody could know of it; one that is just being made stays."""
    folder.mkdir()
    old, new = folder / "a.ledger-new", folder / "b.ledger-new"
    old.write_bytes(b"")
    new.write_bytes(b"")
    os.utime(old, (time.time() - 3600, time.time() - 3600))
    await keeper.replay()
    assert [path.name for path in folder.iterdir()] == ["b.ledger-new"]


async def test_keeping_takes_in_what_was_left_before_and_what_is_left_behind(folder, ledger, journal):
    """A run that begins charges what the last one owed, and owes nothing when it ends kindly."""
    dead = LedgerFile(folder, "gateway-9")
    dead.intend(intent("old"))
    dead.close()
    async with keeping(ledger, folder, KEEP):
        assert (await ledger.row("req_old")).recovered
        journal.settle(record("new"))
        journal.close()
    assert await ledger.row("req_new") is not None
    assert list(folder.iterdir()) == []


async def test_the_keeper_goes_on_after_an_outage(folder, ledger, journal):
    """A ledger that is away costs nothing but time."""
    journal.settle(record(1))
    keeper = LedgerKeeper(folder, Failing(ledger, keeps=False), KEEP)
    keeper._ledger.purge = ledger.purge
    keeping_on = asyncio.create_task(keeper.run())
    try:
        async with asyncio.timeout(POLL_S * 40):
            while await ledger.row("req_1") is None:  # noqa: ASYNC110  # nothing announces it
                await asyncio.sleep(0.01)
    finally:
        keeping_on.cancel()
        await asyncio.wait([keeping_on])


async def test_what_is_old_is_purged_batch_after_batch(folder, ledger):
    """No batch is large, and none is left."""
    rows = [
        LedgerRow(
            request_id=f"req_{number}",
            started_at=NOW + number,
            ended_at=NOW,
            organization="o",
            project="p",
            key="k",
            model="m",
            lane="bulk",
            surface="s",
            outcome="finished",
            status=200,
        )
        for number in range(4500)
    ]
    await ledger.add(rows)
    keeper = LedgerKeeper(folder, ledger, Retention(1, 2), unix=lambda: NOW + 86400 + 4499)
    await keeper.purge()
    assert [row.request_id for row in (await ledger.rows(ALL)).rows] == ["req_4499"]
    assert (await charged(ledger))[1] == 4500
    late = LedgerKeeper(folder, ledger, Retention(1, 2), unix=lambda: NOW + 5 * 86400)
    await late.purge()
    assert await charged(ledger) == (0, 0)


REPLAY = """
import asyncio, sys
from pathlib import Path
from gateway.ledger_keeper import LedgerKeeper
from policies.ledger import Retention
from policies.sqlite_ledger import SqliteLedger

async def main(home):
    async with await SqliteLedger.open(home / "ledger.sqlite3") as ledger:
        print("begun", flush=True)
        await LedgerKeeper(home / "ledger", ledger, Retention(30, 400)).replay()

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.e2e
async def test_a_replay_that_is_killed_in_the_middle_is_repeated_without_harm(ledger, folder, journal, tmp_path):
    """kill -9 of the process that replays, twice, at moments when some rows are in and others are not."""
    for number in range(8000):
        journal.intend(intent(number))
        if number % 2:
            journal.settle(record(number))
    journal.close()
    seen = []
    for wait_s in (0.05, 0.1, None):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", REPLAY, str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        await process.stdout.readline()
        if wait_s is not None:
            await asyncio.sleep(wait_s)
            process.kill()
        await process.communicate()
        seen.append((await charged(ledger))[1])
    assert seen == sorted(seen)
    assert await charged(ledger) == (4000 * 30 + 4000 * 50, 8000)
    assert list(folder.iterdir()) == []


_STEPS = st.lists(st.sampled_from(["intend", "settle", "pass", "die", "fail"]), max_size=25)


@settings(max_examples=25, deadline=None)
@given(steps=_STEPS)
async def test_whoever_dies_when_each_request_is_charged_once(tmp_path_factory, steps):
    """Intents, ends, passes, deaths and failing passes in any order."""
    home = tmp_path_factory.mktemp("home")
    async with await SqliteLedger.open(home / "l.sqlite3") as ledger:
        failing = Failing(ledger, keeps=True)
        failing.num_failures = 0
        keeper = LedgerKeeper(home / "ledger", failing, KEEP)
        journal = LedgerFile(home / "ledger", "g", max_file_bytes=600)
        number, open_names, lost, ended = 0, [], 0, 0
        for step in [*steps, "die"]:
            if step == "intend":
                number += 1
                journal.intend(intent(number))
                open_names.append(number)
            elif step == "settle" and open_names:
                journal.settle(record(open_names.pop(0)))
                ended += 1
            elif step == "fail":
                failing.num_failures = 1
                try:
                    await keeper.replay()
                except StoreError:
                    keeper = LedgerKeeper(home / "ledger", failing, KEEP)  # it was killed and started again
                failing.num_failures = 0
            elif step == "pass":
                await keeper.replay()
            elif step == "die":
                journal._piece.close()
                lost += len(open_names)
                open_names = []
                journal = LedgerFile(home / "ledger", "g", max_file_bytes=600)
        await keeper.replay()
        assert await charged(ledger) == (ended * 30 + lost * 50, ended + lost)
        journal.close()


async def test_rows_that_the_ledger_does_not_take_are_counted(folder, ledger, journal):
    """An operator sees how much waits while the ledger is away, and that it is gone afterwards."""
    failing = Failing(ledger, keeps=False)
    failing.num_failures = 2
    keeper = LedgerKeeper(folder, failing, KEEP)
    for number in range(5):
        journal.intend(intent(number))
        journal.settle(record(number))
    journal.intend(intent("open"))
    for expected in (5, 6):
        with pytest.raises(StoreError):
            await keeper.replay()
        assert (keeper.num_waiting, keeper.num_files) == (expected, 1)
        journal.settle(record(f"more-{expected}"))
    await keeper.replay()
    assert (keeper.num_waiting, keeper.num_files) == (0, 1)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["intent", "record", "rubbish", "long"]), max_size=12), st.integers(0, 400))
def test_counting_in_parts_is_counting_at_once(tmp_path_factory, kinds, cut):
    """Wherever a count stopped, nothing is counted twice or left out; a torn line is none."""
    lines = {
        "intent": encode(intent(1)),
        "record": encode(record(1)),
        "rubbish": b'x{"}',
        "long": b"[" + b"x" * READ_BYTES,
    }
    whole = b"".join(lines[kind] + b"\n" for kind in kinds)
    path = tmp_path_factory.mktemp("count") / "x.ledger"
    path.write_bytes(whole[:cut])
    reader = LedgerReader(path)
    reader.count()
    assert reader.num_waiting == sum(line.startswith(b"{") for line in whole[:cut].split(b"\n")[:-1])
    path.write_bytes(whole)
    reader.count()
    assert reader.num_waiting == kinds.count("record")
    while (batch := reader.read()) is not None:
        reader.advance(batch)
    assert reader.num_waiting == 0


async def test_what_was_in_a_file_that_was_taken_away_is_in_the_ledger_once(folder, ledger, journal, keeper):
    """Also what the keeper had taken already, and what was still open."""
    journal.intend(intent(1))
    journal.settle(record(1))
    journal.intend(intent(2))
    await keeper.replay()
    journal.settle(record(2))
    shutil.rmtree(folder)
    await keeper.replay()
    assert await charged(ledger) == (30, 1)
    assert journal.check()
    journal.intend(intent(3))
    await keeper.replay()
    assert await charged(ledger) == (60, 2)
    journal.close()
    await keeper.replay()
    assert await charged(ledger) == (110, 3)


async def test_a_ledger_that_was_taken_away_is_told_once(folder, journal, tmp_path):
    """In the log, by its name; every row is there afterwards."""
    async with await SqliteLedger.open(tmp_path / "own.sqlite3") as own:
        keeper = LedgerKeeper(folder, own, KEEP)
        journal.settle(record(1))
        await keeper.replay()
        for path in tmp_path.glob("own.sqlite3*"):
            path.unlink()
        with capture_logs() as lines:
            journal.settle(record(2))
            await keeper.replay()
            journal.settle(record(3))
            await keeper.replay()
        assert [line["event"] for line in lines] == ["ledger.store_removed"]
        assert "own.sqlite3" in lines[0]["ledger"]
        assert keeper.num_restored == 1
    async with await SqliteLedger.open(tmp_path / "own.sqlite3") as again:
        assert await charged(again) == (90, 3)
