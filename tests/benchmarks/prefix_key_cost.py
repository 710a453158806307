"""What keying a prompt costs: 32 KB of chat in 40 messages, from the body and from the messages already read.

    python -m tests.benchmarks.prefix_key_cost

Process time, the best of several rounds, of one core.
"""

import json
import random
import sys
import time
from collections.abc import Callable

from cache_affinity.prefix import prefix_key
from gateway.request import Surface, read

TARGET_KEY_US, TARGET_WHOLE_US = 15.0, 50.0
NUM_MESSAGES, BODY_BYTES = 40, 32 * 1024
_ROUNDS, _REPEATS = 15, 1000
_WORDS = ("the", "quota", "of", "a", "replica", "holds", "warm", "prefixes,", "which", "nobody", "evicts.\n", '"so"')


def body() -> bytes:
    """A conversation with the line ends and quotes that text has."""
    rng = random.Random(1)
    size = BODY_BYTES // NUM_MESSAGES - 44  # chosen: with the braces and names around it 32 KB in all
    messages = []
    for number in range(NUM_MESSAGES):
        role = "system" if number == 0 else ("assistant", "user")[number % 2]
        messages.append({"role": role, "content": " ".join(rng.choices(_WORDS, k=size // 4))[:size]})
    return json.dumps({"model": "m", "messages": messages}).encode()


def cpu_us(work: Callable[[], object]) -> float:
    """CPU-µs of one call."""
    best = float("inf")
    for _ in range(_ROUNDS):
        begun = time.process_time()
        for _ in range(_REPEATS):
            work()
        best = min(best, (time.process_time() - begun) / _REPEATS)
    return best * 1e6


def main() -> int:
    """0 if both are within what they must be, else 1."""
    raw = body()
    segments = read(Surface.CHAT, raw).segments
    key_us = cpu_us(lambda: prefix_key("m", "salt", segments))
    whole_us = cpu_us(lambda: prefix_key("m", "salt", read(Surface.CHAT, raw).segments))
    print(f"{len(raw):,} bytes, {len(segments)} messages, {len(prefix_key('m', 'salt', segments).hashes)} borders")
    print(f"key of what is read: {key_us:.1f} CPU-µs (at most {TARGET_KEY_US:.0f})")
    print(f"read and keyed:      {whole_us:.1f} CPU-µs (at most {TARGET_WHOLE_US:.0f})")
    return int(key_us > TARGET_KEY_US or whole_us > TARGET_WHOLE_US)


if __name__ == "__main__":
    sys.exit(main())
