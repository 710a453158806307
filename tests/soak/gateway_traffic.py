"""Random requests of every surface, tenant and lane, and clients of every kind. Pure: the same seed, the same requests."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

MODEL = "soak"
MAX_BODY_MB = 0.25
WRONG_KEY = "wl-00000000-nobody"
# name: (how often, limits)
TENANTS: dict[str, tuple[int, dict[str, Any]]] = {
    "open": (12, {}),
    "by requests": (2, {"rpm": 60}),
    "by tokens": (2, {"tpm": 3000}),
    "narrow": (3, {"concurrency": {"interactive": 1, "standard": 2, "bulk": 2}, "batch_cap": {"bulk": 1}}),
    "poor": (2, {"tokens_per_day": 30_000, "usd_per_month": 0.05}),
}
LANES = ("interactive", "standard", "bulk")
_WORDS = ("river", "stone", "window", "morning", "paper", "garden", "engine", "letter", "cloud", "bridge", "market")
_STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
_RAW = ("half a head", "half a body", "nothing", "two at once")


@dataclass(frozen=True)
class Ask:
    """One request. `body`: an object, bytes as they are, or None for a GET; `tenant` None: a key that nobody has.

    `leaves_after_s`: the client goes then. `pause_s`: it waits so long between two pieces. `raw`: sent by hand, how.
    """

    kind: str
    path: str
    body: dict[str, Any] | bytes | None
    tenant: str | None
    lane: str
    leaves_after_s: float | None = None
    pause_s: float = 0.0
    raw: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def is_streaming(self) -> bool:
        """Whether events are asked for."""
        return isinstance(self.body, dict) and bool(self.body.get("stream"))


class Traffic:
    """Draws requests."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._shared = [self._text(60) for _ in range(6)]

    def next(self, last_response: dict[str, str]) -> Ask:
        """The next one. `last_response`: of each tenant the response that a conversation may go on from."""
        random = self._random
        tenant = random.choices(list(TENANTS), [often for often, _ in TENANTS.values()])[0]
        if random.random() < 0.08:
            return self._odd(tenant)
        if random.random() < 0.04:
            how = random.choice(_RAW)
            return Ask(how, "/v1/tokenize", {"model": MODEL, "prompt": self._text(4)}, tenant, "interactive", raw=how)
        return self._good(tenant, last_response.get(tenant))

    def _good(self, tenant: str, last_response: str | None) -> Ask:
        random = self._random
        path, body = random.choice([self._generating(last_response), self._generating(last_response), self._other()])
        if path in _STREAMED and random.random() < 0.6:
            body["stream"] = True
            if path in _STREAMED[:2]:
                body["stream_options"] = {"include_usage": True}
        leaves = random.expovariate(4.0) if random.random() < 0.15 else None
        pause = 0.05 if random.random() < 0.1 else 0.0
        asked = body if path != "/v1/models" else None
        return Ask(path.removeprefix("/v1/"), path, asked, tenant, random.choice(LANES), leaves, pause)

    def _generating(self, last_response: str | None) -> tuple[str, dict[str, Any]]:
        random = self._random
        path = random.choice(_STREAMED)
        limit = random.randint(1, 48)
        messages = [
            {"role": "user", "content": f"{random.choice(self._shared)} {self._text(random.randint(1, 30))}"},
        ]
        if path == "/v1/completions":
            return path, {"model": MODEL, "prompt": self._text(random.randint(1, 60)), "max_tokens": limit}
        if path == "/v1/responses":
            body: dict[str, Any] = {"model": MODEL, "input": self._text(12), "max_output_tokens": max(limit, 16)}
            if last_response is not None and random.random() < 0.6:
                body["previous_response_id"] = last_response
            return path, body
        return path, {"model": MODEL, "messages": messages, "max_tokens": limit}

    def _other(self) -> tuple[str, dict[str, Any]]:
        texts = [self._text(self._random.randint(1, 20)) for _ in range(self._random.randint(1, 4))]
        asked: list[tuple[str, dict[str, Any]]] = [
            ("/v1/embeddings", {"model": MODEL, "input": texts}),
            ("/v1/rerank", {"model": MODEL, "query": "river", "documents": texts}),
            ("/v1/tokenize", {"model": MODEL, "prompt": texts[0]}),
            ("/v1/messages/count_tokens", {"model": MODEL, "messages": [{"role": "user", "content": texts[0]}]}),
            ("/v1/models", {}),
        ]
        return self._random.choice(asked)

    def _odd(self, tenant: str) -> Ask:
        path = self._random.choice(_STREAMED[:2])
        bodies: list[tuple[str, dict[str, Any] | bytes, str | None]] = [
            ("no JSON", b'{"model": ', tenant),
            ("no model", {"model": "none", "messages": [], "prompt": "a"}, tenant),
            ("wrong type", {"model": MODEL, "messages": 3, "prompt": {}}, tenant),
            ("too large", b'{"model": "' + b"x" * int(MAX_BODY_MB * 1.2e6) + b'"}', tenant),
            ("wrong key", {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "prompt": "a"}, None),
        ]
        kind, body, who = self._random.choice(bodies)
        return Ask(kind, path, body, who, "interactive")

    def _text(self, num_words: int) -> str:
        return " ".join(self._random.choice(_WORDS) for _ in range(num_words))
