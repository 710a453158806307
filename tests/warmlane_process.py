"""A `warmlane` command as a process: its ready line, its log, its children, and its end with nothing left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import httpx
import psutil

PATIENCE_S = 60


def until(claim, told=lambda: "it did not come true in time"):
    """Wait until `claim()` is true: its value. Looks again and again, for nothing tells what another process does."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := claim()):
        assert time.monotonic() < deadline, told()
        time.sleep(0.02)
    return value


class Running:
    """One `warmlane` process: its ready line, its log, its children."""

    def __init__(self, process, stderr):
        self.process = process
        self.lines = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, args=(stderr,), daemon=True)
        self._reader.start()
        self.fields = {}
        self.seen = {}

    def _read(self, stream):
        for line in stream:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self.lines.append("")
            self._news.notify_all()

    @property
    def stderr(self):
        """All that it said so far."""
        return "".join(self.lines)

    def until_logged(self, text):
        """Wait until its stderr has this text."""
        self.until(lambda: text in self.stderr)

    def until(self, claim):
        """Wait until something is true that follows from what it logs."""
        with self._news:
            assert self._news.wait_for(claim, PATIENCE_S), self.stderr

    def until_ready(self):
        """Wait for the ready line."""
        line = self.process.stdout.readline()
        assert line.startswith("ready "), f"{line!r}\n{self.stderr}"
        self.fields = dict(part.split("=", 1) for part in line.split()[1:])
        self.remember_children()
        return self.fields

    def remember_children(self):
        """Look at its children now, to see later that they are gone."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            self.seen[child.pid] = child

    def children(self):
        """All its living descendants."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, program):
        """The first child that runs this module."""

        def found():
            for one in self.children():
                with contextlib.suppress(psutil.Error):  # gone before it could be asked
                    self.seen[one.pid] = one
                    if program in " ".join(one.cmdline()) and one.status() != psutil.STATUS_ZOMBIE:
                        return one
            return None

        return until(found, lambda: f"no child runs {program}")  # one just forked still shows its parent's words

    def end(self, number=signal.SIGINT):
        """Signal it and wait: its exit status, with nothing left behind."""
        self.remember_children()
        self.process.send_signal(number)
        return self.exit_status()

    def exit_status(self):
        """Wait for its end; no child may be left, and nothing more on stdout."""
        status = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert self.process.stdout.read() == ""
        assert [one for one in self.seen.values() if one.is_running()] == []
        return status

    def chat(self, key=None, **body):
        """A chat request with the demo key, or another."""
        return httpx.post(
            f"{self.fields['url']}/chat/completions",
            json={"model": "fake-model", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, **body},
            headers={"authorization": f"Bearer {key or self.fields['key']}"},
            timeout=PATIENCE_S,
        )

    def admin(self, path, method="GET", body=None):
        """A question or an order to the admin plane."""
        answer = httpx.request(
            method,
            f"{self.fields['admin']}/admin/v1{path}",
            json=body,
            headers={"authorization": f"Bearer {self.fields['admin_token']}"},
            timeout=PATIENCE_S,
        )
        assert answer.is_success, answer.text
        return answer.json()

    def until_replicas(self, wanted, *, besides=()):
        """Wait until the gateway sees these replicas: (name, state, generation), `besides` those of these names."""
        found = []

        def is_seen():
            try:
                found[:] = [(one["name"], one["state"], one["generation"]) for one in self.admin("/replicas")["data"]]
            except AssertionError:  # the gateway is just starting
                found.clear()
            return sorted(one for one in found if one[0] not in besides) == wanted

        until(is_seen, lambda: found)


@contextlib.contextmanager
def commands(home):
    """Starts `warmlane` commands in one home; none outlives the block."""
    started = []

    def start(*words, config="", env=None, stderr=None):
        path = home.parent / f"config-{len(started)}.toml"
        path.write_text(config)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("WARMLANE_")}
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", *words, "--config", str(path), "--port", "0", "--admin-port", "0"],
            stdout=subprocess.PIPE,
            stderr=stderr or subprocess.PIPE,
            text=True,
            env={**clean, "WARMLANE_HOME": str(home), **(env or {})},
        )
        running = Running(process, process.stderr or [])
        started.append(running)
        return running

    try:
        yield start
    finally:
        for one in started:
            if one.process.poll() is None:
                one.process.kill()
                one.process.wait()
            for stream in (one.process.stdout, one.process.stderr):
                if stream is not None:
                    stream.close()
