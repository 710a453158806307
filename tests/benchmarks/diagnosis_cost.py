"""What prefix diagnosis costs a request: CPU of one more prompt, and memory with everything at its bound.

    python -m tests.benchmarks.diagnosis_cost

Process time, the best of several rounds; prompts, keys and segments are made before. Memory as the growth of the
resident set.
"""

import gc
import sys
import time
from collections.abc import Iterator

import psutil

from cache_affinity.diagnosis import MAX_BORDERS, MAX_CONVERSATIONS, MAX_PROJECTS, PrefixDiagnosis
from cache_affinity.prefix import PrefixKey, prefix_key
from gateway.prompt_place import part_of_chat

TARGET_US = 3.0
SYSTEM = "You are a helpful assistant. " * 200
Noted = tuple[PrefixKey, tuple[bytes, ...]]


def message(role: str, text: str) -> bytes:
    """As the canonical prompt has it."""
    return f"{len(role)},0,0\x1f{role}{text}\x1f{len(text)}".encode()


def keyed(*segments: bytes) -> Noted:
    """A prompt and its key."""
    return prefix_key("m", "salt", segments), segments


def dated() -> list[Noted]:
    """A time in the system prompt, another question each."""
    return [
        keyed(message("system", f"Now: {n:06}. {SYSTEM}"), message("user", f"question {n} " + "x" * (n % 500)))
        for n in range(2000)
    ]


def questions() -> list[Noted]:
    """One system prompt, another question each."""
    system = message("system", SYSTEM)
    return [keyed(system, message("user", f"question {n} " + "x" * (n % 500))) for n in range(2000)]


def conversations() -> list[Noted]:
    """Turns that go on, up to 32 KB in 40 messages."""
    found, system = [], message("system", SYSTEM)
    for chat in range(50):
        messages = [system, message("user", f"hello {chat}")]
        for turn in range(19):
            found.append(keyed(*messages))
            messages += [message("assistant", "a" * 1200), message("user", f"go on {turn}" + "b" * 100)]
    return found


def edited() -> list[Noted]:
    """32 KB in 40 messages, in whose third one something changes each time: the most that there is to do."""
    history = [message("assistant", "a" * 800), message("user", "b" * 100)] * 18
    start = [message("system", SYSTEM), message("user", "hello")]
    return [keyed(*start, message("user", f"<now {n:06}>" + "c" * 100), *history) for n in range(1000)]


WORKLOADS = {"dated": dated, "questions": questions, "conversations": conversations, "edited": edited}


def cpu_us(prompts: list[Noted], rounds: int = 7) -> float:
    """CPU microseconds a prompt."""
    best = float("inf")
    for _ in range(rounds):
        diagnosis, start = PrefixDiagnosis(part_of_chat), time.process_time()
        for key, segments in prompts:
            diagnosis.note("p", "o", "m", key, segments, now=0.0)
        best = min(best, (time.process_time() - start) / len(prompts))
    return best * 1e6


def full() -> Iterator[tuple[str, Noted]]:
    """Prompts of as many borders as are kept, of as many conversations and projects."""
    for project in range(MAX_PROJECTS):
        for chat in range(MAX_CONVERSATIONS + 1):
            yield f"p{project}", keyed(*(message("user", f"{project} {chat} {n}") for n in range(MAX_BORDERS)))


def mb_at_bounds() -> float:
    """Megabytes."""
    gc.collect()
    before, diagnosis = psutil.Process().memory_info().rss, PrefixDiagnosis(part_of_chat)
    for project, (key, segments) in full():
        diagnosis.note(project, "o", "m", key, segments, now=0.0)
    gc.collect()
    assert len(diagnosis) == MAX_PROJECTS, "all of them are kept"
    return (psutil.Process().memory_info().rss - before) / 1e6


def main() -> None:
    """Measure and tell."""
    for name, make in WORKLOADS.items():
        sys.stdout.write(f"{name:<14} {cpu_us(make()):5.2f} us a prompt (target {TARGET_US:g})\n")
    sys.stdout.write(f"{'at its bounds':<14} {mb_at_bounds():5.1f} MB\n")


if __name__ == "__main__":
    main()
