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

    def wait_for(self, process: Process, most_s: float) -> float:
        """Seconds until it uses a unit."""
        began_at = time.monotonic()
        while not self.of(process):
            assert time.monotonic() < began_at + most_s, "it got nothing"
            time.sleep(0.005)
        return time.monotonic() - began_at


def test_a_cap_holds_over_four_processes_and_is_shared(start, replica):
    """200 clients on four gateways: never more than 3, hardly ever less, and all four get their part."""
    processes = [start() for _ in range(4)]
    for process in processes:
        replica.wait_for(process, 5 * LEASE_S)
    seen = replica.watch(5.0)
    done = [process.stop() for process in processes]
    assert replica.most == CAP
    shares = [seen[process.gateway] / seen["looks"] for process in processes]
    assert sum(shares) > 0.75 * CAP, shares
    assert min(shares) > 0.6 * CAP / 4, shares
    assert max(one["longest_wait_s"] for one in done) < 20


def test_who_wants_little_gets_it_and_the_rest_is_not_wasted(start, replica):
    """Shares follow demand: one gateway with one client now and then, one with fifty."""
    busy, quiet = start(num_clients=50), start(num_clients=1, pause_s=0.1)
    for process in (busy, quiet):
        replica.wait_for(process, 5 * LEASE_S)
    seen = replica.watch(3.0)
    results = {"busy": busy.stop(), "quiet": quiet.stop()}
    assert replica.most == CAP
    assert seen[busy.gateway] / seen["looks"] > 1.6, results
    assert results["quiet"]["served"] > 10, results


def test_units_of_a_killed_process_return_within_a_lease(start, replica):
    """kill -9 says goodbye to nobody; the replica sees its connections closed."""
    first = start(hold_s=30.0)
    replica.wait_for(first, 5 * LEASE_S)
    second = start(num_clients=5)
    time.sleep(2 * LEASE_S)
    assert len(replica.of(first)) == CAP
    assert not replica.of(second)
    first.kill()
    replica.drop(first)
    assert replica.wait_for(second, 2 * LEASE_S) <= LEASE_S + 0.3
    replica.watch(LEASE_S)
    assert len(replica.of(second)) <= CAP
    assert replica.most == CAP
    second.stop()


def test_a_frozen_process_that_wakes_after_its_lease_takes_nothing_of_the_others(start, replica):
    """What it held was given away; it learns so before it can use any of it."""
    processes = [start() for _ in range(2)]
    for process in processes:
        replica.wait_for(process, 5 * LEASE_S)
    frozen, other = processes
    for _ in range(2):
        frozen.signal(signal.SIGSTOP)
        replica.drop(frozen)  # a replica may go on with these; they are what is adrift, and known as such
        replica.watch(LEASE_S)
        seen = replica.watch(0.5 * LEASE_S)
        assert seen[other.gateway] > seen[frozen.gateway] == 0
        frozen.signal(signal.SIGCONT)
        replica.wait_for(frozen, 3 * LEASE_S)
    assert replica.most == CAP
    for process in processes:
        process.stop()


def test_an_emptied_redis_grants_nothing_twice(start, redis_server, replica):  # noqa: F811
    """Killed and started without its memory, it lets everyone say what they hold before it grants anything."""
    processes = [start(num_clients=10, hold_s=0.1) for _ in range(4)]
    for process in processes:
        replica.wait_for(process, 5 * LEASE_S)
    time.sleep(LEASE_S)
    assert replica.most == CAP
    redis_server.restart()
    with redis_server.client() as client:
        seen = Replica(client)
        for process in processes:
            seen.wait_for(process, 6 * LEASE_S)
        time.sleep(LEASE_S)
        assert seen.most <= CAP
    for process in processes:
        process.stop()


def test_a_paused_redis_is_waited_out(start, redis_server, replica):  # noqa: F811
    """P17: frozen for longer than a lease, it comes back and everything goes on without a double allowance."""
    processes = [start(num_clients=10, hold_s=0.05) for _ in range(4)]
    for process in processes:
        replica.wait_for(process, 5 * LEASE_S)
    redis_server.pause()
    time.sleep(2.5 * LEASE_S)
    redis_server.resume()
    for process in processes:
        replica.drop(process)  # the counter could not be told that they ended
    for process in processes:
        replica.wait_for(process, 6 * LEASE_S)
    replica.watch(LEASE_S)
    assert replica.most == CAP
    for process in processes:
        process.stop()
