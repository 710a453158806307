"""One child process, from its start to its end."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from engines.launch.local import LocalProcess, StartFailed, ending

READY = "print('ready url=http://127.0.0.1:1/v1 model=m', flush=True)"
FOREVER = "import time\nwhile True: time.sleep(60)"


def python(*parts):
    """The argv of a small Python child."""
    return [sys.executable, "-c", "\n".join(textwrap.dedent(part) for part in parts)]


def is_gone(pid):
    """Whether no process (a zombie neither) has this id."""
    return not psutil.pid_exists(pid)


async def test_a_child_is_ready_and_ends_by_sigterm():
    """The plain life of a worker."""
    process = await LocalProcess.start("w", python(READY, FOREVER))
    async with process:
        assert (await process.ready(30)).get("model") == "m"
        assert process.is_running
        assert await process.stop(10) == -signal.SIGTERM
    assert not process.is_running
    assert is_gone(process.pid)


async def test_a_child_that_ignores_sigterm_is_killed_after_its_grace():
    """A hung worker must not hold up the end for ever."""
    process = await LocalProcess.start(
        "w", python("import signal", "signal.signal(signal.SIGTERM, signal.SIG_IGN)", READY, FOREVER)
    )
    async with process:
        await process.ready(30)
        assert await process.stop(0.05) == -signal.SIGKILL


async def test_a_second_stop_with_a_shorter_grace_wins():
    """A second Ctrl-C means at once."""
    process = await LocalProcess.start(
        "w", python("import signal", "signal.signal(signal.SIGTERM, signal.SIG_IGN)", READY, FOREVER)
    )
    async with process:
        await process.ready(30)
        kindly = asyncio.ensure_future(process.stop(3600))
        await asyncio.sleep(0)
        assert await process.stop(0) == -signal.SIGKILL
        assert await kindly == -signal.SIGKILL
        assert await process.stop(0) == -signal.SIGKILL


async def test_leaving_the_block_kills_what_still_runs():
    """An abandoned start (an exception, a cancellation) leaves no process."""
    with pytest.raises(RuntimeError, match="abandoned"):
        async with await LocalProcess.start("w", python(FOREVER)) as process:
            raise RuntimeError("abandoned")
    assert is_gone(process.pid)


async def test_cancelling_the_wait_for_readiness_leaves_no_process():
    """Ctrl-C while a model loads."""
    process = await LocalProcess.start("w", python(FOREVER))

    async def wait_for_it():
        async with process:
            await process.ready(3600)

    task = asyncio.ensure_future(wait_for_it())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_gone(process.pid)


async def test_a_child_that_ends_before_it_is_ready_says_why():
    """Its own last sentence is the reason; log lines and earlier words are kept as the tail."""
    said = "import sys; print('first', file=sys.stderr); print('the model is corrupt', file=sys.stderr)"
    process = await LocalProcess.start("w", python(said, "print('{\"event\": 1}', file=sys.stderr)", "sys.exit(1)"))
    async with process:
        with pytest.raises(StartFailed) as failed:
            await process.ready(30)
    assert (failed.value.reason, failed.value.code) == ("the model is corrupt", 1)
    assert failed.value.tail == ("first", "the model is corrupt", '{"event": 1}')


async def test_a_child_that_is_not_ready_in_time_is_reported_and_still_runs():
    """The caller decides what to do with it."""
    async with await LocalProcess.start("w", python(FOREVER)) as process:
        with pytest.raises(StartFailed, match=r"not ready within 0\.01 s") as failed:
            await process.ready(0.01)
        assert failed.value.code is None
        assert process.is_running


async def test_a_program_that_is_not_there_ends_with_its_own_sentence():
    """The program's name is in the reason."""
    process = await LocalProcess.start("w", ["/nowhere/at/all"])
    async with process:
        with pytest.raises(StartFailed, match="nowhere"):
            await process.ready(30)


async def test_output_is_passed_on_line_by_line_and_untouched():
    """JSON log lines of a worker reach our stderr as they are; other stdout goes there too, the ready line does not."""
    heard = []
    child = python(
        "import sys",
        "print('chatter', flush=True)",
        READY,
        "print('ready url=http://second/v1', flush=True)",
        'sys.stderr.buffer.write(b\'{"event":"a"}\\nlast \\xff\')',
    )
    async with await LocalProcess.start("w", child, heard.append) as process:
        await process.ready(30)
        assert await process.wait() == 0
    assert sorted(heard) == sorted([b"chatter", b"ready url=http://second/v1", b'{"event":"a"}', b"last \xff"])


async def test_the_tail_is_bounded():
    """A child that floods stderr costs a bounded amount of memory."""
    child = python("import sys", "for i in range(500): print('x' * 5000, i, file=sys.stderr)", "sys.exit(3)")
    async with await LocalProcess.start("w", child, lambda _line: None) as process:
        assert await process.wait() == 3
    assert len(process.tail) == 20
    assert max(map(len, process.tail)) == 2000


async def test_grandchildren_end_with_the_child():
    """A worker's own helper process does not outlive it and does not hold up the end."""
    child = python(
        "import subprocess, sys, os",
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])",
        "print(f'ready url=http://127.0.0.1:1/v1 grandchild={p.pid}', flush=True)",
        "os._exit(0)",
    )
    async with await LocalProcess.start("w", child) as process:
        grandchild = int((await process.ready(30)).get("grandchild"))
        assert await process.wait() == 0
    psutil.wait_procs([p for p in psutil.process_iter() if p.pid == grandchild], timeout=10)
    assert not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's tie is Linux'")
def test_killing_the_supervisor_kills_its_children():
    """After kill -9 of the supervisor no worker holds the port or the memory."""
    code = f"{READY}\n{FOREVER}"
    supervisor = f"""
import asyncio, sys
from engines.launch.local import LocalProcess
async def main():
    child = await LocalProcess.start("w", [sys.executable, "-c", {code!r}])
    await child.ready(30)
    print(child.pid, flush=True)
    await child.wait()
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", supervisor], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    with contextlib.suppress(psutil.NoSuchProcess):
        child.wait(timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE  # init reaps it where there is one


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's tie is Linux'")
def test_a_child_whose_parent_is_gone_already_does_not_start():
    """The parent may die between starting the child and the tie."""
    code = subprocess.run(
        [sys.executable, "-m", "engines.launch.tether", str(os.getpid() + 1), sys.executable, "-c", "print(1)"],
        capture_output=True,
        check=False,
    )
    assert (code.returncode, code.stdout) == (-signal.SIGKILL, b"")


@pytest.mark.parametrize(
    ("code", "tail", "sentence"),
    [
        (0, ["all well"], "it ended with exit status 0"),
        (1, [], "it ended with exit status 1"),
        (1, ["  no such model ", "  "], "no such model"),
        (1, ['{"event": "x"}'], "it ended with exit status 1"),
        (-9, ["no such model"], "it was killed by SIGKILL"),
        (-64 - 1, [], "it was killed by signal 65"),
    ],
)
def test_an_ending_is_one_sentence(code, tail, sentence):
    """An operator reads why, not a number, where the child said why."""
    assert ending(code, tail) == sentence
