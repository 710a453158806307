"""Bodies for the surfaces that generate no text, and a scripted engine that answers them as vLLM does.

gateway.script(served(cut=True), served())          # whichever of these surfaces the next requests are for
answer = await gateway.post(BODIES[Surface.RERANK](), path="/v1/rerank")
"""

import base64
import json
import struct
from dataclasses import dataclass, field, replace

from gateway.request import FORMS, GENERATING, Surface
from tests.gateway.kit import MODEL
from tests.scripted_engine import Cut, Framing, Reply

INPUT_SURFACES = tuple(surface for surface in Surface if surface not in GENERATING + FORMS)
CHARGED = (Surface.EMBEDDINGS, Surface.RERANK, Surface.SCORE)
FREE = (Surface.TOKENIZE, Surface.DETOKENIZE, Surface.COUNT_TOKENS, Surface.INPUT_TOKENS)


def embeddings(texts="Hello", **fields):
    """An embeddings request's body."""
    return {"model": MODEL, "input": texts, **fields}


def rerank(query="Hello", documents=("a cat", "a dog"), **fields):
    """A rerank request's body."""
    return {"model": MODEL, "query": query, "documents": list(documents), **fields}


def score(text="Hello", others=("a cat", "a dog"), **fields):
    """A score request's body."""
    return {"model": MODEL, "text_1": text, "text_2": list(others), **fields}


def tokenize(prompt="Hello", **fields):
    """A tokenize request's body."""
    return {"model": MODEL, "prompt": prompt, **fields}


def detokenize(text="Hello", **fields):
    """A detokenize request's body: a token for each letter."""
    return {"model": MODEL, "tokens": list(text.encode()), **fields}


def count_tokens(text="Hello", **fields):
    """A count_tokens request's body, which engines are sent as a tokenize request."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


def input_tokens(text="Hello", **fields):
    """A body of `responses/input_tokens`, which engines are sent as a tokenize request."""
    return {"model": MODEL, "input": text, **fields}


BODIES = {
    Surface.EMBEDDINGS: embeddings,
    Surface.RERANK: rerank,
    Surface.SCORE: score,
    Surface.TOKENIZE: tokenize,
    Surface.DETOKENIZE: detokenize,
    Surface.COUNT_TOKENS: count_tokens,
    Surface.INPUT_TOKENS: input_tokens,
}


def vector_of(text):
    """Three numbers that float32 has exactly."""
    return [float(len(str(text))), 0.5, -0.25]


def packed(vector):
    """A vector as base64."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def whole_of(path, asked, usage):
    """What vLLM answers, as an object."""
    if path.endswith("/embeddings"):
        found = asked["input"]
        texts = found if isinstance(found, list) and not isinstance(found[0], int) else [found]
        shown = packed if asked.get("encoding_format") == "base64" else list
        data = [{"object": "embedding", "index": n, "embedding": shown(vector_of(t))} for n, t in enumerate(texts)]
        return {"id": "embd-x", "object": "list", "created": 1, "model": asked["model"], "data": data, "usage": usage}
    if path.endswith("/rerank"):
        documents = asked["documents"]
        ranked = [
            {"index": n, "document": {"text": d}, "relevance_score": 0.5 / (n + 1)} for n, d in enumerate(documents)
        ]
        return {"id": "rerank-x", "model": asked["model"], "usage": usage, "results": ranked}
    if path.endswith("/score"):
        num = len(asked["text_2"]) if isinstance(asked["text_2"], list) else 1
        data = [{"index": n, "object": "score", "score": n / 4} for n in range(num)]
        return {"id": "score-x", "object": "list", "created": 1, "model": asked["model"], "data": data, "usage": usage}
    if path.endswith("/detokenize"):
        return {"prompt": bytes(asked["tokens"]).decode()}
    tokens = list((asked.get("prompt") or asked.get("content") or "a chat").encode())
    return {"count": len(tokens), "max_model_len": 512, "tokens": tokens, "token_strs": None}


@dataclass
class served:  # noqa: N801  # a script is called like `answer`
    """A script. `usage`: prompt tokens reported, None for none. `gate`: waited for before the body.

    `cut`: the connection ends in the middle. `changes`: members of the answer's body that are others.
    """

    usage: int | None = 7
    gate: object = None
    cut: bool = False
    changes: dict = field(default_factory=dict)

    def but(self, **changes):
        """The same with other members of its body."""
        return replace(self, changes=changes)

    def __call__(self, request):
        usage = None if self.usage is None else {"prompt_tokens": self.usage, "total_tokens": self.usage}
        body = whole_of(request.path, request.json, usage) | self.changes
        if body.get("usage", 0) is None:
            del body["usage"]
        raw = json.dumps(body).encode()
        steps = [] if self.gate is None else [self.gate]
        headers = [("content-type", "application/json")]
        if self.cut:
            half = [*steps, raw[: len(raw) // 2], Cut.CLOSE]
            return Reply(half, headers=headers, framing=Framing.LENGTH, declared_length=len(raw))
        return Reply([*steps, raw], headers=headers, framing=Framing.LENGTH)
