"""What the two generating surfaces, chat and completions, have in common: a request read, and an answer written.

A surface reads a body into a `Prepared` and chooses the `AnswerWriter`; the rest of the path does not care which it is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from engines.worker.answers import CompletionTokensDetails, PromptTokensDetails, Usage
from engines.worker.bounds import GenerationSpec
from engines.worker.choice import Choice, Finish, Piece
from engines.worker.constraints import Constraint
from engines.worker.errors import ApiError, invalid
from engines.worker.family import ChatFamily
from engines.worker.output.parts import merged
from engines.worker.output.reply import ReplyStyle
from engines.worker.prompts import PromptBuilder, Tokens


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request ready to be queued, but for its grammar. `request_id`: the body's own, if it has one.

    `constraint`: what the answer must look like; `reply`: how a chat answer is read; `echoes`: each prompt's text,
    where the answer repeats it.
    """

    spec: GenerationSpec
    prompts: tuple[Tokens, ...]
    max_tokens: tuple[int, ...]
    request_id: str | None
    constraint: Constraint | None = None
    reply: ReplyStyle | None = None
    echoes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a surface knows of its model. `default_max`: output tokens when a request names no bound.

    `fingerprint`: changes when the same request may be answered differently.
    """

    name: str
    prompts: PromptBuilder
    vocab_size: int
    piece_of: Callable[[int], bytes]
    default_max: int
    family: ChatFamily
    fingerprint: str


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every body of an answer begins with. `created`: Unix seconds."""

    id: str
    created: int
    model: str
    fingerprint: str


class AnswerWriter(Protocol):
    """The bodies of one answer."""

    def opening(self, num_choices: int) -> list[bytes]:
        """Events before the first text."""
        ...

    def chunk(self, piece: Piece, usage: Usage | None) -> bytes:
        """One event for one piece; the choice's finish rides on the same event as its last text."""
        ...

    def usage_chunk(self, usage: Usage) -> bytes:
        """The event without choices that carries the usage."""
        ...

    def whole(self, pieces: Sequence[Piece], num_choices: int, usage: Usage) -> bytes:
        """The body of an answer that is not streamed, from all its pieces."""
        ...


class ChoiceWriter:
    """What writers of both surfaces keep: the head of the answer, and what log probabilities are made with."""

    def __init__(self, head: AnswerHead, piece_of: Callable[[int], bytes], *, wants_logprobs: bool) -> None:
        self._head = head
        self._piece_of = piece_of
        self._wants_logprobs = wants_logprobs


def whole_choices(pieces: Sequence[Piece], num_choices: int) -> Iterator[tuple[Piece, Finish]]:
    """Each choice as one piece with all its text and log probabilities, and how it ended, in order."""
    for index in range(num_choices):
        own = [piece for piece in pieces if piece.index == index]
        tokens = tuple(entry for piece in own for entry in piece.logprobs)
        parts = merged([part for piece in own for part in piece.parts])
        text = "".join(piece.text for piece in own)
        yield Piece(index, text, tokens, parts=parts), own[-1].finish or Finish("stop")


class Surface(Protocol):
    """One generating route. `name` is its name in logs."""

    name: str
    id_prefix: str

    def prepare(self, body: bytes) -> Prepared:
        """Read, check and tokenise. Slow: called off the loop. Raises `ApiError`."""
        ...

    def writer(self, head: AnswerHead, prepared: Prepared) -> AnswerWriter:
        """The writer of one answer."""
        ...


def usage_of(prompts: Sequence[Tokens], choices: Sequence[Choice]) -> Usage:
    """Usage so far. `choices` are those of the first prompt, then of the second, and so on.

    A prompt's cached tokens are those of its luckless choice: its siblings hit what it computed.
    """
    per_prompt = len(choices) // len(prompts)
    cached = 0
    for start in range(0, len(choices), per_prompt):
        known = [c.cached_tokens for c in choices[start : start + per_prompt] if c.cached_tokens is not None]
        cached += min(known, default=0)
    prompt_tokens = sum(map(len, prompts))
    completion_tokens = sum(choice.num_tokens for choice in choices)
    total = prompt_tokens + completion_tokens
    usage = Usage(prompt_tokens, completion_tokens, total, PromptTokensDetails(cached))
    reasoning = [choice.reasoning_tokens for choice in choices if choice.reasoning_tokens is not None]
    if reasoning:
        usage.completion_tokens_details = CompletionTokensDetails(sum(reasoning))
    return usage


def check_model(asked: str | None, served: str) -> None:
    """Raise 404 unless the request means the model that is served."""
    if asked is not None and asked != served:
        raise ApiError(404, "this worker does not serve the model asked for", param="model", code="model_not_found")


def room_for(spec: GenerationSpec, prompt: Tokens, context: int, default: int) -> int:
    """The most tokens this prompt may get: what was asked for, else `default`, within the context. Raises 400."""
    room = context - len(prompt)
    if spec.max_tokens is None:
        room = min(room, max(default, spec.sampling.min_tokens))
    wanted = spec.max_tokens or spec.sampling.min_tokens
    if wanted > room:
        field = "min_tokens" if spec.max_tokens is None else spec.max_tokens_field
        message = (
            f"this worker's context is {context} tokens; the prompt has {len(prompt)} and `{field}` asks for {wanted}"
        )
        raise invalid(field, message, code="context_length_exceeded")
    return spec.max_tokens or room
