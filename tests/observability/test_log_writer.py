"""The log's own thread: whoever logs never waits for whoever reads."""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import threading

import pytest

from observability.log_writer import LogWriter

PATIENCE_S = 30


def lost(number):
    """The line about dropped lines."""
    return b"lost %d\n" % number


@pytest.fixture
def pipe():
    """A pipe of one page: (reading end, writing end)."""
    reading, writing = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):  # Linux
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    yield reading, writing
    for end in (reading, writing):
        with contextlib.suppress(OSError):  # a test closed it
            os.close(end)


def read_until(reading, text):
    """All that comes up to and with `text`."""
    found = b""
    while text not in found:
        found += os.read(reading, 65536)
    return found


def test_lines_come_whole_and_in_order(pipe):
    """However many threads of the writer's queue they passed."""
    reading, writing = pipe
    log = LogWriter(writing, lost)
    for number in range(2000):
        log.write(b"line %d\n" % number)
    lines = read_until(reading, b"line 1999\n").splitlines()
    assert lines == [b"line %d" % number for number in range(2000)]
    assert log.flush(PATIENCE_S)
    assert log.num_dropped == 0


def test_lines_of_many_threads_are_not_mixed(pipe):
    """Each is one piece."""
    reading, writing = pipe
    log = LogWriter(writing, lost)

    def write(letter):
        for _ in range(300):
            log.write(letter * 50 + b"\n")

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.write(b"end\n")
    lines = read_until(reading, b"end\n").splitlines()[:-1]
    assert sorted(lines) == [letter * 50 for letter in (b"a", b"b", b"c") for _ in range(300)]


def test_without_a_reader_nobody_waits_and_what_was_lost_is_said_in_its_place(pipe):
    """The queue is bounded; the first lines and the newest after the gap are there."""
    reading, writing = pipe
    log = LogWriter(writing, lost, max_waiting_bytes=20_000)
    for number in range(5000):
        log.write(b"line %04d\n" % number)  # 50 kB: had it waited for the pipe, this would never end
    assert log.num_dropped > 2000
    assert not log.flush(0)
    found, kept, missing = b"", [], 0
    while len(kept) + missing < 5000:
        found += os.read(reading, 65536)
        *lines, found = found.split(b"\n")
        for line in lines:
            word, number = line.split()
            if word == b"line":
                assert int(number) == len(kept) + missing  # where lines are missing, the count of them stands
                kept.append(line)
            else:
                missing += int(number)
    assert missing == log.num_dropped
    log.write(b"news\n")
    assert read_until(reading, b"news\n") == b"news\n"


def test_a_line_larger_than_the_queue_is_written_when_nothing_waits(pipe):
    """A long line is no lost line."""
    reading, writing = pipe
    log = LogWriter(writing, lost, max_waiting_bytes=10)
    log.write(b"x" * 100 + b"\n")
    assert read_until(reading, b"\n") == b"x" * 100 + b"\n"


def test_a_reader_that_is_gone_costs_nothing(pipe):
    """The lines are counted as dropped, and the flush at the end does not wait."""
    reading, writing = pipe
    os.close(reading)
    log = LogWriter(writing, lost)
    log.write(b"one\ntwo\n")
    assert log.flush(PATIENCE_S)
    assert log.num_dropped == 2


def test_a_descriptor_that_does_not_block_loses_nothing(pipe):
    """A terminal that another program made so."""
    reading, writing = pipe
    os.set_blocking(writing, False)
    log = LogWriter(writing, lost)
    for number in range(2000):
        log.write(b"line %d\n" % number)
    assert len(read_until(reading, b"line 1999\n").splitlines()) == 2000


PROGRAM = """
import sys
from observability import logs
logs.configure("info", "gateway")
for number in range(60_000):
    logs.get().info("thing.done", number=number, filler="x" * 200)
sys.stdout.write("all said\\n")
sys.stdout.flush()
"""


def start(**how):
    """A process that logs 18 MB."""
    return subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)


def test_a_process_whose_log_is_never_read_goes_on_and_ends():
    """The end waits for a reader a bounded time only."""
    with start() as process:
        assert process.stdout.readline() == b"all said\n"
        assert process.wait(PATIENCE_S) == 0
        process.stderr.close()


def test_a_process_whose_log_is_read_late_says_how_much_is_missing():
    """And every line is whole."""
    with start() as process:
        assert process.stdout.readline() == b"all said\n"
        lines = [json.loads(line) for line in process.stderr]
        assert process.wait(PATIENCE_S) == 0
    numbers = [line["number"] for line in lines if line["event"] == "thing.done"]
    losses = [line for line in lines if line["event"] == "log.lines_dropped"]
    assert numbers == sorted(numbers)
    assert {loss["process"] for loss in losses} == {"gateway"}
    assert len(numbers) + sum(loss["number"] for loss in losses) == 60_000
