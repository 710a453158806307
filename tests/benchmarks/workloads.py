"""The four workloads, and how a request tells the mock engine what to do.

The mock reads its orders from a marker in the prompt (`bench:itl_ms=20,stamp=1;`), because a gateway is free to drop
fields it does not know but must pass on the prompt.
"""

import json
import random
from dataclasses import dataclass

MODEL = "mock-model"
NUM_PROMPTS = 64  # distinct ones; the first half of each is shared, as in a product's traffic


@dataclass(frozen=True)
class Workload:
    """`unit`: what its CPU cost is counted per. `ramp_s`: connections begin at random times within it."""

    name: str
    unit: str
    connections: int
    prompt_bytes: int
    num_tokens: int
    is_streaming: bool
    orders: str = ""
    seconds: float = 4.0
    ramp_s: float = 0.0

    def bodies(self) -> list[bytes]:
        """The request bodies, the same in every run."""
        rng = random.Random(7)
        shared = _words(rng, self.prompt_bytes // 2)
        return [
            self._body((self.orders + shared + _words(rng, self.prompt_bytes))[: self.prompt_bytes])
            for _ in range(NUM_PROMPTS)
        ]

    def _body(self, text: str) -> bytes:
        middle = self.prompt_bytes // 4
        messages = [{"role": "system", "content": text[:middle]}, {"role": "user", "content": text[middle:]}]
        fields = {
            "model": MODEL,
            "messages": messages,
            "max_tokens": self.num_tokens,
            "temperature": 0.7,
            "stream": self.is_streaming,
        }
        return json.dumps(fields).encode()


def _words(rng: random.Random, num_bytes: int) -> str:
    words = []
    while num_bytes > 0:
        words.append(f"{rng.choice(('warm', 'prefix', 'lane', 'token', 'cache'))}{rng.randrange(1000)} ")
        num_bytes -= len(words[-1])
    return "".join(words)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("small", "request", 32, 1024, 16, is_streaming=False),
        Workload("large", "request", 16, 32 * 1024, 16, is_streaming=False),
        Workload("stream0", "chunk", 32, 1024, 128, is_streaming=True),
        Workload(
            "stream20",
            "chunk",
            200,
            1024,
            128,
            is_streaming=True,
            orders="bench:itl_ms=20,stamp=1;",
            seconds=6.0,
            ramp_s=2.5,
        ),
    )
}
