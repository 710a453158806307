"""A child kept running."""

import asyncio
import os
import signal
import sys

import psutil
import pytest

from engines.launch.backoff import BackoffPolicy
from engines.launch.supervised import _MOVES, ChildSpec, ChildState, Failing, Lost, Started, Supervised

QUICK = BackoffPolicy(first_s=0.001, cap_s=0.01)
READY = "print('ready url=http://127.0.0.1:7/v1 model=m', flush=True)"
FOREVER = "import time\nwhile True: time.sleep(60)"


class Events:
    """Collects events and lets a test wait for one."""

    def __init__(self):
        self.seen = []
        self._news = asyncio.Event()

    def __call__(self, event):
        self.seen.append(event)
        self._news.set()

    async def until(self, wanted):
        """The first event that `wanted` accepts."""
        while True:
            found = [event for event in self.seen if wanted(event)]
            if found:
                return found[0]
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 30)


def spec(*code, **options):
    """A child that runs Python code."""
    return ChildSpec("w", lambda _ready: [sys.executable, "-c", "\n".join(code)], **options)


def started(generation):
    """Accepts the start of this generation."""
    return lambda event: isinstance(event, Started) and event.generation == generation


async def test_a_killed_child_is_started_again_with_a_new_generation():
    """A crash costs one restart, and nobody takes the new worker for the old one."""
    events = Events()
    child = Supervised(spec(READY, FOREVER), events, QUICK)
    running = asyncio.ensure_future(child.run())
    first = await events.until(started(1))
    assert (first.name, first.url, child.state) == ("w", "http://127.0.0.1:7", ChildState.READY)
    os.kill(child.pid, signal.SIGKILL)
    await events.until(started(2))
    await child.stop()
    await running
    assert [type(event) for event in events.seen] == [Started, Lost, Started]
    lost = events.seen[1]
    assert (lost.generation, lost.was_ready, lost.code, lost.reason) == (1, True, -9, "it was killed by SIGKILL")
    assert (child.state, child.pid) == (ChildState.STOPPED, None)


async def test_the_next_start_knows_the_last_ready_line():
    """A gateway on any free port comes back on the port it had."""
    asked = []
    events = Events()

    def argv(ready):
        asked.append(ready.url if ready else None)
        return [sys.executable, "-c", READY]

    child = Supervised(ChildSpec("g", argv), events, QUICK)
    running = asyncio.ensure_future(child.run())
    await events.until(started(2))
    await child.stop()
    await running
    assert asked[:2] == [None, "http://127.0.0.1:7/v1"]


async def test_failed_starts_with_the_same_sentence_are_reported_once_with_the_tail():
    """The operator sees why, not an endless list of restarts."""
    events = Events()
    child = Supervised(spec("import sys", "print('no such model', file=sys.stderr)", "sys.exit(1)"), events, QUICK)
    running = asyncio.ensure_future(child.run())
    failing = await events.until(lambda event: isinstance(event, Failing))
    assert failing == Failing("w", 3, "no such model", ("no such model",))
    await events.until(lambda event: isinstance(event, Lost) and event.generation == 5)
    await child.stop()
    await running
    assert sum(isinstance(event, Failing) for event in events.seen) == 1


async def test_a_different_sentence_starts_the_count_anew():
    """Two different failures in turn are no proof that it never works."""
    events = Events()
    code = "import sys, os; print('reason', {}, file=sys.stderr); sys.exit(1)"
    turns = iter(range(100))
    child = Supervised(
        ChildSpec("w", lambda _ready: [sys.executable, "-c", code.format(next(turns) % 2)]), events, QUICK
    )
    running = asyncio.ensure_future(child.run())
    await events.until(lambda event: isinstance(event, Lost) and event.generation == 5)
    await child.stop()
    await running
    assert not any(isinstance(event, Failing) for event in events.seen)


async def test_a_child_that_is_never_ready_is_killed_and_started_again():
    """A worker that hangs while it loads is not waited for endlessly."""
    events = Events()
    child = Supervised(spec(FOREVER, start_timeout_s=0.05), events, QUICK)
    running = asyncio.ensure_future(child.run())
    lost = await events.until(lambda event: isinstance(event, Lost))
    assert (lost.was_ready, lost.code, lost.reason) == (False, None, "it was not ready within 0.05 s")
    await child.stop()
    await running
    assert child.pid is None


async def test_stop_while_it_starts_leaves_nothing():
    """Ctrl-C while the model loads."""
    alive, pids = asyncio.Event(), []

    def echo(line):
        pids.append(int(line))
        alive.set()

    loading = spec("import os, sys", "print(os.getpid(), file=sys.stderr, flush=True)", FOREVER)
    child = Supervised(loading, Events(), QUICK, echo=echo)
    running = asyncio.ensure_future(child.run())
    await alive.wait()
    await child.stop()
    await running
    assert not psutil.pid_exists(pids[0])


async def test_stop_during_the_back_off_ends_at_once():
    """Nobody waits half a minute for a worker that is not even running."""
    events = Events()
    child = Supervised(spec("raise SystemExit(1)"), events, BackoffPolicy(first_s=3600, cap_s=3600))
    running = asyncio.ensure_future(child.run())
    await events.until(lambda event: isinstance(event, Lost))
    await child.stop()
    await running
    assert child.state is ChildState.STOPPED


async def test_stop_before_the_start_and_twice_is_harmless():
    """An end may come before the beginning."""
    child = Supervised(spec(READY), Events(), QUICK)
    await child.stop()
    await child.run()
    await child.stop()
    assert (child.state, child.generation) == (ChildState.STOPPED, 0)


async def test_a_second_stop_does_not_wait_for_the_grace():
    """A second Ctrl-C means at once."""
    events = Events()
    deaf = ("import signal", "signal.signal(signal.SIGTERM, signal.SIG_IGN)", READY, FOREVER)
    child = Supervised(spec(*deaf, grace_s=3600), events, QUICK)
    running = asyncio.ensure_future(child.run())
    await events.until(started(1))
    kindly = asyncio.ensure_future(child.stop())
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await child.stop(0)
        await kindly
        await running
    assert child.state is ChildState.STOPPED


async def test_cancelling_the_supervision_kills_the_child():
    """An abandoned supervision leaves no process."""
    events = Events()
    child = Supervised(spec(READY, FOREVER), events, QUICK)
    running = asyncio.ensure_future(child.run())
    await events.until(started(1))
    pid = child.pid
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not psutil.pid_exists(pid)
    assert child.state is ChildState.STOPPED
    await child.stop()


async def test_a_broken_callback_ends_the_supervision_and_the_child():
    """A bug of ours is heard, and leaves no process behind."""
    pids = []

    def broken(_event):
        pids.append(child.pid)
        raise ZeroDivisionError

    child = Supervised(spec(READY, FOREVER), broken, QUICK)
    with pytest.raises(ZeroDivisionError):
        await child.run()
    assert not psutil.pid_exists(pids[0])


def test_a_stopped_child_never_moves_again():
    """The table of moves: every state can stop, and stopped is the end."""
    assert _MOVES[ChildState.STOPPED] == set()
    assert all(ChildState.STOPPED in moves for state, moves in _MOVES.items() if state is not ChildState.STOPPED)
    assert set(_MOVES) == set(ChildState)


@pytest.mark.parametrize("before", ChildState)
@pytest.mark.parametrize("after", ChildState)
async def test_only_the_moves_of_the_table_are_made(before, after):
    """The whole table, legal and illegal."""
    child = Supervised(spec(READY), Events(), QUICK)
    child.state = before
    if after in _MOVES[before]:
        child._move(after)
        assert child.state is after
    else:
        with pytest.raises(AssertionError, match="cannot move"):
            child._move(after)
