"""Real groups of Redis servers for tests: a primary with a replica under three sentinels, and a Cluster of six.

Every server has a port and a folder of its own, and can be killed. Fast to notice: half a second without an answer.
"""

import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from tests.redis_server import RedisServer, free_port

NOTICES_MS = 500
SERVICE = "warmlane"


class SentinelGroup:
    """`primary` and `replica` as started; `url` names the sentinels."""

    def __init__(self, folder: Path) -> None:
        self.primary, self.replica = _server(folder, "one"), _server(folder, "two")
        self._sentinels: list[subprocess.Popen[bytes]] = []
        self._ports: list[int] = []
        self._folder = folder

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"redis+sentinel://{hosts}/{SERVICE}/0"

    def start(self) -> None:
        self.primary.start("--appendonly", "yes")
        self.replica.start("--replicaof", "127.0.0.1", str(self.primary.port), "--repl-diskless-sync-delay", "0")
        with self.replica.client() as client:
            wait_until(lambda: client.info("replication")["master_link_status"] == "up", "the replica follows")
        self._ports = [free_port() for _ in range(3)]
        for number in range(3):
            self._start_sentinel(number)
        wait_until(self._is_ready, "the sentinels know each other")

    def primary_port(self) -> int:
        """As a sentinel says."""
        with redis.Redis(port=self._ports[0], socket_timeout=2) as sentinel:
            return int(sentinel.sentinel_masters()[SERVICE]["port"])

    def stop(self) -> None:
        for one in self._sentinels:
            one.kill()
            one.wait()
        self.primary.kill()
        self.replica.kill()

    def _start_sentinel(self, number: int) -> None:
        ids = [f"{one + 1:040x}" for one in range(3)]
        folder = self._folder / f"sentinel{number}"
        folder.mkdir()
        config = folder / "sentinel.conf"
        config.write_text(
            f"port {self._ports[number]}\nbind 127.0.0.1\ndir {folder}\nsentinel myid {ids[number]}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.primary.port} 2\n"
            f"sentinel down-after-milliseconds {SERVICE} {NOTICES_MS}\n"
            f"sentinel failover-timeout {SERVICE} 4000\n"
            # What they would find out about each other and the replica, some seconds later.
            f"sentinel known-replica {SERVICE} 127.0.0.1 {self.replica.port}\n"
            + "".join(
                f"sentinel known-sentinel {SERVICE} 127.0.0.1 {self._ports[one]} {ids[one]}\n"
                for one in range(3)
                if one != number
            )
        )
        with (folder / "log").open("wb") as log:
            self._sentinels.append(
                subprocess.Popen(["redis-server", str(config), "--sentinel"], stdout=log, stderr=log)
            )

    def _is_ready(self) -> bool:
        states = []
        for port in self._ports:
            try:
                with redis.Redis(port=port, socket_timeout=2) as sentinel:
                    states.append(sentinel.sentinel_masters()[SERVICE])
            except redis.RedisError:
                return False
        return all(one["num-other-sentinels"] == 2 and one["num-slaves"] == 1 for one in states)


class ClusterGroup:
    """Three primaries with a replica each."""

    def __init__(self, folder: Path) -> None:
        self.servers = [_server(folder, str(number), _cluster_port()) for number in range(6)]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:3])

    def start(self) -> None:
        for server in self.servers:
            server.start(
                *("--cluster-enabled", "yes", "--cluster-node-timeout", str(NOTICES_MS * 2)),
                *("--cluster-replica-validity-factor", "0", "--cluster-require-full-coverage", "no"),
                *("--repl-diskless-sync-delay", "0", "--appendonly", "yes"),
            )
        places = [f"127.0.0.1:{server.port}" for server in self.servers]
        command = ["redis-cli", "--cluster", "create", *places, "--cluster-replicas", "1", "--cluster-yes"]
        made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert made.returncode == 0, made.stdout + made.stderr
        wait_until(self._is_ready, "the Cluster is whole")

    def owner_of(self, key: str) -> RedisServer:
        """The primary that has the key's slot."""
        with self.servers[0].client() as client:
            slot = client.execute_command("CLUSTER KEYSLOT", key)
        ports = {self._owner_port(server, slot) for server in self.servers if server.is_running}
        return next(server for server in self.servers if server.port in ports and server.is_running)

    def move(self, key: str) -> RedisServer:
        """Move the slot of a key to another primary, key by key, as `redis-cli --cluster reshard` does; to whom."""
        source = self.owner_of(key)
        target = next(one for one in self._primaries() if one is not source)
        with source.client() as old, target.client() as new:
            slot = old.execute_command("CLUSTER KEYSLOT", key)
            ids = {one: _text(client.execute_command("CLUSTER MYID")) for one, client in ((source, old), (target, new))}
            new.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[source])
            old.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target])
            time.sleep(0.05)
            while keys := old.execute_command("CLUSTER GETKEYSINSLOT", slot, 1):
                old.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
                time.sleep(0.25)  # a long move, so that calls meet every stage of it
            for server in (target, source, *self._primaries()):
                with server.client() as client:
                    client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[target])
        return target

    def stop(self) -> None:
        for server in self.servers:
            server.kill()

    def _primaries(self) -> list[RedisServer]:
        found = []
        for server in self.servers:
            if server.is_running:
                with server.client() as client:
                    if client.info("replication")["role"] == "master":
                        found.append(server)
        return found

    def _owner_port(self, server: RedisServer, slot: int) -> int:
        with server.client() as client:
            for first, last, primary, *_ in client.execute_command("CLUSTER SLOTS"):
                if first <= slot <= last:
                    return int(primary[1])
        return 0

    def _is_ready(self) -> bool:
        for server in self.servers:
            with server.client() as client:
                state = _text(client.execute_command("CLUSTER INFO"))
                nodes = _text(client.execute_command("CLUSTER NODES"))
                link = client.info("replication").get("master_link_status", "up")
            if "cluster_state:ok" not in state or nodes.count("slave") != 3 or link != "up":
                return False
        return True


def wait_until(condition, what: str, most_s: float = 30.0) -> None:
    """Look until it is so."""
    ends_at = time.monotonic() + most_s
    while not condition():
        assert time.monotonic() < ends_at, f"not in time: {what}"
        time.sleep(0.05)


@contextmanager
def running(kind: type[SentinelGroup] | type[ClusterGroup]) -> Iterator[SentinelGroup | ClusterGroup]:
    """A group that lives as long as the block."""
    with tempfile.TemporaryDirectory(prefix="warmlane-redis-") as folder:
        group = kind(Path(folder))
        try:
            group.start()
            yield group
        finally:
            group.stop()


def _server(folder: Path, name: str, port: int | None = None) -> RedisServer:
    (folder / name).mkdir()
    return RedisServer(folder / name, port)


def _cluster_port() -> int:
    """A free one whose neighbour 10,000 above, which the servers of a Cluster talk on, is free too."""
    while True:
        port = random.randint(10_000, 20_000)
        try:
            with socket.socket() as one, socket.socket() as other:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 10_000))
        except OSError:
            continue
        return port


def _text(answer: object) -> str:
    if isinstance(answer, dict):
        return "\n".join(f"{name}:{value}" for name, value in answer.items())
    return answer.decode() if isinstance(answer, bytes) else str(answer)
