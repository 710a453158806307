"""Random requests of every kind a worker serves. Pure: the same random numbers, the same requests."""

from dataclasses import dataclass
from random import Random
from typing import Any

MODEL = "soak"
_SALTS = (None, "red", "green", "blue", "grey")
_WORDS = [
    "the",
    "a",
    "library",
    "shelf",
    "book",
    "river",
    "stone",
    "window",
    "morning",
    "paper",
    "garden",
    "engine",
    "letter",
    "cloud",
    "bridge",
    "market",
    "winter",
    "lamp",
    "road",
    "island",
    "question",
    "number",
    "answer",
    "captain",
    "teacher",
    "village",
    "silver",
    "narrow",
    "quiet",
    "old",
    "new",
    "three",
    "seven",
    "because",
    "under",
]
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "shelf": {"type": "integer"},
        "kind": {"enum": ["atlas", "novel", "poem"]},
    },
    "required": ["name", "shelf", "kind"],
    "additionalProperties": False,
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "find_book",
        "description": "Where a book stands.",
        "parameters": {
            "type": "object",
            "properties": {"title": {"type": "string", "maxLength": 12}},
            "required": ["title"],
            "additionalProperties": False,
        },
    },
}


@dataclass(frozen=True)
class Ask:
    """One request. `leaves_after_s`: the client goes away then, whatever has come; None: it reads to the end.

    `is_unseen`: its salt was never used, so nothing may come from the cache. `is_json`: a finished answer is JSON.
    """

    kind: str
    path: str
    body: dict[str, Any]
    num_choices: int = 1
    leaves_after_s: float | None = None
    is_unseen: bool = False
    is_json: bool = False


class Traffic:
    """An endless mix. Conversations share one of a few long beginnings, so that caches and host memory matter."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._systems = [self._text(self._random.randint(60, 150)) for _ in range(9)]
        self._turns: dict[tuple[int, str | None], list[dict[str, str]]] = {}

    def next(self) -> Ask:
        """The next request."""
        kinds = (self._chat, self._copy, self._json, self._tool, self._choices, self._embed, self._plain, self._unseen)
        (make,) = self._random.choices(kinds, weights=(10, 4, 2, 2, 2, 3, 3, 1))
        return make()

    def _chat(self) -> Ask:
        """A turn of a conversation, whose earlier turns are made up and shared by whoever has the same salt."""
        salt, number = self._random.choice(_SALTS), self._random.randrange(len(self._systems))
        turns = self._turns.setdefault((number, salt), [])
        turns.append({"role": "user", "content": self._text(self._random.randint(4, 30))})
        messages = [{"role": "system", "content": self._systems[number]}, *turns]
        turns.append({"role": "assistant", "content": self._text(self._random.randint(4, 20))})
        if len(turns) > 10:
            turns.clear()
        return self._asked("chat", messages, salt, self._random.randint(1, 32))

    def _copy(self) -> Ask:
        """A prompt that the answer repeats, which speculation is good at."""
        text = self._text(12)
        messages = [{"role": "user", "content": f"Repeat this four times. {text}. {text}. {text}."}]
        return self._asked("copy", messages, self._random.choice(_SALTS), 48, temperature=0)

    def _json(self) -> Ask:
        schema = {"name": "book", "schema": _SCHEMA, "strict": True}
        given = {"response_format": {"type": "json_schema", "json_schema": schema}}
        return self._asked("json", self._question(), self._random.choice(_SALTS), 80, is_json=True, **given)

    def _tool(self) -> Ask:
        given = {"tools": [_TOOL], "tool_choice": self._random.choice(["auto", "required"])}
        return self._asked("tool", self._question(), self._random.choice(_SALTS), 64, **given)

    def _choices(self) -> Ask:
        num = self._random.randint(2, 4)
        return self._asked("choices", self._question(), self._random.choice(_SALTS), 12, num_choices=num, n=num)

    def _plain(self) -> Ask:
        body = {
            "model": MODEL,
            "prompt": self._text(self._random.randint(3, 60)),
            "max_tokens": self._random.randint(1, 24),
            "temperature": self._random.choice([0, 0.7]),
            "logprobs": self._random.choice([None, 2]),
            "priority": self._random.choice([0, 1, 2]),
        }
        return self._sent("plain", "/v1/completions", body)

    def _unseen(self) -> Ask:
        messages = [{"role": "system", "content": self._systems[0]}, *self._question()]
        return self._asked("unseen", messages, f"{self._random.getrandbits(64):x}", 4, is_unseen=True)

    def _embed(self) -> Ask:
        texts = [self._text(self._random.randint(1, 40)) for _ in range(self._random.randint(1, 4))]
        return Ask("embed", "/v1/embeddings", {"model": MODEL, "input": texts}, len(texts), self._leaving())

    def _asked(
        self,
        kind: str,
        messages: list[dict[str, str]],
        salt: str | None,
        max_tokens: int,
        *,
        num_choices: int = 1,
        is_unseen: bool = False,
        is_json: bool = False,
        **fields: Any,
    ) -> Ask:
        body = {
            "model": MODEL,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": self._random.choice([0, 0.8]),
            "seed": self._random.randrange(100),
            "priority": self._random.choice([0, 0, 1, 2]),
            **fields,
        }
        if salt is not None:
            body["cache_salt"] = salt
        return self._sent(kind, "/v1/chat/completions", body, num_choices, is_unseen=is_unseen, is_json=is_json)

    def _sent(
        self,
        kind: str,
        path: str,
        body: dict[str, Any],
        num_choices: int = 1,
        *,
        is_unseen: bool = False,
        is_json: bool = False,
    ) -> Ask:
        if self._random.random() < 0.7:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return Ask(kind, path, body, num_choices, self._leaving(), is_unseen=is_unseen, is_json=is_json)

    def _leaving(self) -> float | None:
        return self._random.expovariate(1.0) if self._random.random() < 0.15 else None

    def _question(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"Which book is about {self._text(self._random.randint(2, 12))}?"}]

    def _text(self, num_words: int) -> str:
        return " ".join(self._random.choice(_WORDS) for _ in range(num_words))
