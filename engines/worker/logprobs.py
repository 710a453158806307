"""Log probabilities in the two shapes OpenAI gives them. Pure."""

import math
from collections.abc import Callable, Sequence

from engines.core.sequence import TokenLogprob
from engines.worker.answers import ChatLogprobs, CompletionLogprobs, TokenLogprobs, TopLogprob

PieceOf = Callable[[int], bytes]
_IMPOSSIBLE = -9999.0  # OpenAI's number for a token that cannot come; JSON has no infinity


def chat_logprobs(tokens: Sequence[TokenLogprob], piece_of: PieceOf) -> ChatLogprobs:
    """The chat shape. `bytes` are exact where `token` is only part of a character."""
    content = []
    for entry in tokens:
        top = [TopLogprob(*_described(token, logprob, piece_of)) for token, logprob in entry.top]
        content.append(TokenLogprobs(*_described(entry.token, entry.logprob, piece_of), top))
    return ChatLogprobs(content)


def completion_logprobs(tokens: Sequence[TokenLogprob], piece_of: PieceOf, offset: int) -> CompletionLogprobs:
    """The completions shape. `offset`: characters of the choice's text before these tokens."""
    logprobs = CompletionLogprobs([], [], [], [])
    for entry in tokens:
        text = _text(entry.token, piece_of)
        logprobs.tokens.append(text)
        logprobs.token_logprobs.append(_finite(entry.logprob))
        best: dict[str, float] = {}
        for token, logprob in entry.top:
            best.setdefault(_text(token, piece_of), _finite(logprob))
        logprobs.top_logprobs.append(best)
        logprobs.text_offset.append(offset)
        offset += len(text)
    return logprobs


def _described(token: int, logprob: float, piece_of: PieceOf) -> tuple[str, float, list[int]]:
    return _text(token, piece_of), _finite(logprob), list(piece_of(token))


def _text(token: int, piece_of: PieceOf) -> str:
    return piece_of(token).decode(errors="replace")


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _IMPOSSIBLE
