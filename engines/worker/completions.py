"""`POST /v1/completions`: text or tokens in, their continuation out. Control-token texts in a prompt count."""

from collections.abc import Callable, Sequence

from engines.worker.answers import CompletionChoice, CompletionLogprobs, TextCompletion, Usage, encode_json
from engines.worker.bounds import check_generation
from engines.worker.choice import Piece
from engines.worker.constraints import constraint_of
from engines.worker.decoding import decode_request
from engines.worker.errors import invalid
from engines.worker.logprobs import completion_logprobs
from engines.worker.prompts import MAX_PROMPTS, Tokens
from engines.worker.schema import CompletionRequest
from engines.worker.surface import (
    AnswerHead,
    ChoiceWriter,
    Prepared,
    ServedModel,
    check_model,
    room_for,
    whole_choices,
)


class CompletionSurface:
    """Text completions of one model."""

    name = "completions"
    id_prefix = "cmpl-"

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def prepare(self, body: bytes) -> Prepared:
        """Read, check and tokenise."""
        request = decode_request(body, CompletionRequest)
        check_model(request.model, self._model.name)
        spec = check_generation(request, self._model.vocab_size)
        prompts = tuple(self._model.prompts.completion(request))
        if len(prompts) * spec.num_choices > MAX_PROMPTS:
            raise invalid("n", f"prompts times `n` must be at most {MAX_PROMPTS}")
        context, default_max = self._model.prompts.max_tokens, self._model.default_max
        max_tokens = tuple(room_for(spec, prompt, context, default_max) for prompt in prompts)
        echoes = (
            tuple(self._echo(request.prompt, index, prompt) for index, prompt in enumerate(prompts))
            if request.echo
            else ()
        )
        return Prepared(spec, prompts, max_tokens, request.request_id, constraint_of(request), echoes=echoes)

    def writer(self, head: AnswerHead, prepared: Prepared) -> "CompletionWriter":
        """Writes this answer."""
        return CompletionWriter(
            head,
            self._model.piece_of,
            wants_logprobs=prepared.spec.sampling.logprobs is not None,
            echoes=[echo for echo in prepared.echoes for _ in range(prepared.spec.num_choices)],
        )

    def _echo(self, asked: str | list[str | int | list[int]], index: int, prompt: Tokens) -> str:
        """A prompt's text: the client's own, or that of its tokens."""
        text = asked if isinstance(asked, str) else asked[index]
        if isinstance(text, str):
            return text
        return b"".join(map(self._model.piece_of, prompt)).decode(errors="replace")


class CompletionWriter(ChoiceWriter):
    """The bodies of one completions answer. Keeps how far each choice's text has come, for `text_offset`.

    `echoes`: what each choice's text begins with, or nothing.
    """

    def __init__(
        self,
        head: AnswerHead,
        piece_of: Callable[[int], bytes],
        *,
        wants_logprobs: bool,
        echoes: Sequence[str] = (),
    ) -> None:
        super().__init__(head, piece_of, wants_logprobs=wants_logprobs)
        self._offsets: dict[int, int] = {}
        self._echoes = echoes

    def opening(self, num_choices: int) -> list[bytes]:  # noqa: ARG002  # the contract's
        """The echoes: there are no roles."""
        return [self._body([CompletionChoice(index, echo)], None) for index, echo in enumerate(self._echoes)]

    def chunk(self, piece: Piece, usage: Usage | None) -> bytes:
        """Text, finish or both."""
        offset = self._offsets.get(piece.index, 0)
        self._offsets[piece.index] = offset + len(piece.text)
        choice = CompletionChoice(piece.index, piece.text)
        if piece.logprobs:
            choice.logprobs = self._logprobs(piece, offset)
        if piece.finish is not None:
            choice.finish_reason, choice.stop_reason = piece.finish.reason, piece.finish.stop_reason
        return self._body([choice], usage)

    def usage_chunk(self, usage: Usage) -> bytes:
        """No choices, only the usage."""
        return self._body([], usage)

    def whole(self, pieces: Sequence[Piece], num_choices: int, usage: Usage) -> bytes:
        """All choices with their whole text."""
        choices = []
        for one, finish in whole_choices(pieces, num_choices):
            logprobs = self._logprobs(one, 0)
            text = self._echoes[one.index] + one.text if self._echoes else one.text
            choices.append(CompletionChoice(one.index, text, logprobs, finish.reason, finish.stop_reason))
        return self._body(choices, usage)

    def _logprobs(self, piece: Piece, offset: int) -> CompletionLogprobs | None:
        return completion_logprobs(piece.logprobs, self._piece_of, offset) if self._wants_logprobs else None

    def _body(self, choices: list[CompletionChoice], usage: Usage | None) -> bytes:
        head = self._head
        body = TextCompletion(head.id, "text_completion", head.created, head.model, choices, head.fingerprint)
        if usage is not None:
            body.usage = usage
        return encode_json(body)
