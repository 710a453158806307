"""Synthetic text: tokens and bytes of the same content, so that what the router predicts and what an engine hits agree.

A prompt is a chain of passages. A passage's tokens are a fixed function of its content's number, and its bytes are
those tokens at four bytes each: prompts that begin alike have equal leading tokens, hence equal blocks in an engine,
and equal leading bytes, hence equal borders in the routing key.
"""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import shake_128

import numpy as np

from cache_affinity.prefix import PrefixKey, prefix_key

BYTES_PER_TOKEN = 4
_KEPT_PASSAGES = 16_384  # texts kept for the next prompt that holds them; 512 tokens each are 8 MB


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of text. Equal `content` means equal text, as far as the shorter of two reaches.

    `num_tokens`: its length, at least 1.
    """

    content: int
    num_tokens: int


Prompt = tuple[Passage, ...]


def num_tokens(prompt: Prompt) -> int:
    """Tokens of all passages."""
    return sum(passage.num_tokens for passage in prompt)


def tokens_of(prompt: Prompt) -> tuple[int, ...]:
    """Token ids, each below 256: small ints are shared by Python, so a prompt of thousands costs 8 bytes a token."""
    return tuple(b"".join(_spelled(passage) for passage in prompt))


def key_of(prompt: Prompt, model: str, salt: str) -> PrefixKey:
    """The routing key: each passage is a segment, as a message is."""
    return prefix_key(model, salt, [_text(passage) for passage in prompt])


@lru_cache(maxsize=_KEPT_PASSAGES)
def _spelled(passage: Passage) -> bytes:
    """One byte a token. An extendable hash: a longer passage of the same content begins with the shorter one."""
    return shake_128(passage.content.to_bytes(16, "little")).digest(passage.num_tokens)


@lru_cache(maxsize=_KEPT_PASSAGES)
def _text(passage: Passage) -> bytes:
    return np.frombuffer(_spelled(passage), dtype=np.uint8).astype("<u4").tobytes()
