"""`POST /v1/chat/completions`: messages in, an assistant's message out."""

from collections.abc import Sequence

from engines.worker.answers import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    Delta,
    Usage,
    encode_json,
)
from engines.worker.bounds import check_generation
from engines.worker.choice import Piece
from engines.worker.decoding import decode_request
from engines.worker.logprobs import chat_logprobs
from engines.worker.schema import ChatRequest
from engines.worker.surface import (
    AnswerHead,
    ChoiceWriter,
    Prepared,
    ServedModel,
    check_model,
    room_for,
    whole_choices,
)


class ChatSurface:
    """Chat completions of one model."""

    name = "chat"
    id_prefix = "chatcmpl-"

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def prepare(self, body: bytes) -> Prepared:
        """Read, check, render and tokenise."""
        request = decode_request(body, ChatRequest)
        check_model(request.model, self._model.name)
        spec = check_generation(request, self._model.vocab_size)
        prompt = self._model.prompts.chat(
            request.messages,
            tools=request.tools,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=bool(request.continue_final_message),
        )
        max_tokens = room_for(spec, prompt, self._model.prompts.max_tokens, self._model.default_max)
        return Prepared(spec, (prompt,), (max_tokens,), request.request_id)

    def writer(self, head: AnswerHead, prepared: Prepared) -> "ChatWriter":
        """Writes this answer."""
        return ChatWriter(head, self._model.piece_of, wants_logprobs=prepared.spec.sampling.logprobs is not None)


class ChatWriter(ChoiceWriter):
    """The bodies of one chat answer."""

    def opening(self, num_choices: int) -> list[bytes]:
        """Each choice's role."""
        delta = Delta(role="assistant", content="")
        return [self._event([ChatChunkChoice(index, delta)]) for index in range(num_choices)]

    def chunk(self, piece: Piece, usage: Usage | None) -> bytes:
        """Text, finish or both."""
        choice = ChatChunkChoice(piece.index, Delta(content=piece.text) if piece.text else Delta())
        choice.logprobs = self._logprobs(piece)
        if piece.finish is not None:
            choice.finish_reason, choice.stop_reason = piece.finish.reason, piece.finish.stop_reason
        return self._event([choice], usage)

    def usage_chunk(self, usage: Usage) -> bytes:
        """No choices, only the usage."""
        return self._event([], usage)

    def whole(self, pieces: Sequence[Piece], num_choices: int, usage: Usage) -> bytes:
        """All choices with their whole text."""
        choices = []
        for one, finish in whole_choices(pieces, num_choices):
            logprobs = chat_logprobs(one.logprobs, self._piece_of) if self._wants_logprobs else None
            message = AssistantMessage(one.text)
            choices.append(ChatChoice(one.index, message, logprobs, finish.reason, finish.stop_reason))
        head = self._head
        return encode_json(ChatCompletion(head.id, "chat.completion", head.created, head.model, choices, usage))

    def _logprobs(self, piece: Piece) -> ChatLogprobs | None:
        return chat_logprobs(piece.logprobs, self._piece_of) if self._wants_logprobs and piece.logprobs else None

    def _event(self, choices: list[ChatChunkChoice], usage: Usage | None = None) -> bytes:
        head = self._head
        body = ChatCompletion(head.id, "chat.completion.chunk", head.created, head.model, choices)
        if usage is not None:
            body.usage = usage
        return encode_json(body)
