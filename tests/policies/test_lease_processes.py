"""Four gateway processes, one Redis, a cap of 3: it holds whoever dies, freezes or restarts."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.lease_gateway import IN_USE, MOST
from tests.redis_server import redis_program, redis_server  # noqa: F401  # fixtures
from tests.scripted_engine import PATIENCE_S

ROOT = Path(__file__).parents[2]
CAP, LEASE_S = 3, 1.0
RESOURCE = "cap:p:bulk"

pytestmark = pytest.mark.e2e


class Process:
    """One gateway process."""

    def __init__(self, url: str, num_clients: int = 50, hold_s: float = 0.02, pause_s: float = 0.0) -> None:
        command = [sys.executable, str(ROOT / "tests" / "lease_gateway.py"), url, RESOURCE]
        command += [str(number) for number in (CAP, LEASE_S, num_clients, hold_s, pause_s)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.gateway = self.process.stdout.readline().strip()
        assert self.gateway, "the process did not start"

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self) -> dict:
        """What it did."""
        self.process.terminate()
        answer, _ = self.process.communicate(timeout=10)
        assert self.process.returncode == 0
        return json.loads(answer)


@pytest.fixture
def start(redis_server):  # noqa: F811
    started = []

    def begin(**work) -> Process:
        started.append(Process(redis_server.url, **work))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.signal(signal.SIGCONT)
            one.kill()


@pytest.fixture
def replica(redis_server):  # noqa: F811
    """What the replica sees."""
    with redis_server.client() as client:
        yield Replica(client)


class Replica:
    def __init__(self, client) -> None:
        self._client = client

    @property
    def most(self) -> int:
        return int(self._client.get(MOST) or 0)

    def of(self, process: Process) -> list[bytes]:
        return [token for token in self._client.smembers(IN_USE) if token.decode().startswith(process.gateway)]

    def drop(self, process: Process) -> None:
        """Its connections are closed, or are counted apart."""
        if tokens := self.of(process):
            self._client.srem(IN_USE, *tokens)

    def watch(self, seconds: float) -> Counter:
        """How many units each gateway was seen to use, looked at every few milliseconds."""
        seen: Counter[str] = Counter()
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            seen.update(token.decode().partition("/")[0] for token in self._client.smembers(IN_USE))
            seen["looks"] += 1
            time.sleep(0.003)
        return seen

    def wait_for(self, *processes: Process, num_looks: int = 1) -> None:
        """Wait until each was seen to use a unit so often."""
        seen: Counter[Process] = Counter()
        ends_at = time.monotonic() + PATIENCE_S
        while any(seen[process] < num_looks for process in processes):
            assert time.monotonic() < ends_at, "one got nothing"
            seen.update(process for process in processes if self.of(process))
            time.sleep(0.003)

    def expires_s(self, process: Process) -> float:
        """When its lease ends, as Redis has it."""
        *_, expires_ms = self._client.hget("warmlane:{leases}:gateways", process.gateway).split()
        return int(expires_ms) / 1000

    def now_s(self) -> float:
        """The time by which leases end."""
        seconds, microseconds = self._client.time()
        return seconds + microseconds / 1e6


def test_a_cap_holds_over_four_processes_and_each_is_served(start, replica):
    """200 clients on four gateways: three at a time, never more, and every gateway gets a unit again and again."""
    processes = [start() for _ in range(4)]
    replica.wait_for(*processes, num_looks=20)
    done = [process.stop() for process in processes]
    assert replica.most == CAP
    assert all(one["served"] > 0 for one in done)


@pytest.mark.chaos
def test_a_cap_is_shared_evenly(start, replica):
    """Of the three hardly ever less is in use, and all four get their part."""
    processes = [start() for _ in range(4)]
    replica.wait_for(*processes)
    seen = replica.watch(5.0)
    done = [process.stop() for process in processes]
    assert replica.most == CAP
    shares = [seen[process.gateway] / seen["looks"] for process in processes]
    assert sum(shares) > 0.75 * CAP, shares
    assert min(shares) > 0.6 * CAP / 4, shares
    assert max(one["longest_wait_s"] for one in done) < 20


@pytest.mark.chaos
def test_who_wants_little_gets_it_and_the_rest_is_not_wasted(start, replica):
    """Shares follow demand: one gateway with one client now and then, one with fifty."""
    busy, quiet = start(num_clients=50), start(num_clients=1, pause_s=0.1)
    replica.wait_for(busy, quiet)
    seen = replica.watch(3.0)
    results = {"busy": busy.stop(), "quiet": quiet.stop()}
    assert replica.most == CAP
    assert seen[busy.gateway] / seen["looks"] > 1.6, results
    assert results["quiet"]["served"] > 10, results


def test_units_of_a_killed_process_return_within_a_lease(start, replica):
    """kill -9 says goodbye to nobody; the replica sees its connections closed."""
    first = start(hold_s=600.0)
    replica.wait_for(first)
    second = start(num_clients=5)
    replica.watch(1.5 * LEASE_S)  # a lease is renewed for as long as its units are used
    assert len(replica.of(first)) == CAP
    assert not replica.of(second)
    first.kill()
    ends_s = replica.expires_s(first)
    replica.drop(first)
    replica.wait_for(second)
    assert replica.now_s() >= ends_s
    replica.wait_for(second, num_looks=20)
    assert len(replica.of(second)) <= CAP
    assert replica.most == CAP
    second.stop()


def test_a_frozen_process_that_wakes_after_its_lease_takes_nothing_of_the_others(start, replica):
    """What it held was given away; it learns so before it can use any of it."""
    processes = frozen, other = [start() for _ in range(2)]
    replica.wait_for(*processes)
    for _ in range(2):
        frozen.signal(signal.SIGSTOP)
        replica.drop(frozen)  # a replica may go on with these; they are what is adrift, and known as such
        replica.watch(LEASE_S)
        replica.wait_for(other, num_looks=20)
        assert not replica.of(frozen)
        frozen.signal(signal.SIGCONT)
        replica.wait_for(frozen)
    assert replica.most == CAP
    for process in processes:
        process.stop()


def test_an_emptied_redis_grants_nothing_twice(start, redis_server, replica):  # noqa: F811
    """Killed and started without its memory, it lets everyone say what they hold before it grants anything."""
    processes = [start(num_clients=10, hold_s=0.1) for _ in range(4)]
    replica.wait_for(*processes)
    assert replica.most == CAP
    redis_server.restart()
    with redis_server.client() as client:
        seen = Replica(client)
        seen.wait_for(*processes, num_looks=20)
        assert seen.most <= CAP
    for process in processes:
        process.stop()


def test_a_paused_redis_is_waited_out(start, redis_server, replica):  # noqa: F811
    """P17: frozen for longer than a lease, it comes back and everything goes on without a double allowance."""
    processes = [start(num_clients=10, hold_s=0.05) for _ in range(4)]
    replica.wait_for(*processes)
    redis_server.pause()
    time.sleep(1.5 * LEASE_S)  # a store that answers nobody tells nobody how long
    redis_server.resume()
    for process in processes:
        replica.drop(process)  # the counter could not be told that they ended
    replica.wait_for(*processes, num_looks=20)
    assert replica.most == CAP
    for process in processes:
        process.stop()
