"""`POST /tokenize` and `/detokenize`, in vLLM's shapes."""

from collections.abc import Callable

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from engines.worker.answers import encode_json
from engines.worker.decoding import decode_request
from engines.worker.errors import ApiError, invalid, unsupported
from engines.worker.exchange import ClientGone, Exchange
from engines.worker.prompts import ChatExtras, Tokens
from engines.worker.schema import DetokenizeRequest, TokenizeRequest
from engines.worker.service import Service
from engines.worker.surface import check_model


class TokenizeAnswer(Struct):
    """`max_model_len`: the longest sequence this worker takes."""

    count: int
    max_model_len: int
    tokens: Tokens
    token_strs: list[str] | None


class DetokenizeAnswer(Struct):
    """The text."""

    prompt: str


_ID_BYTES = 12  # of a token id with what stands between two
_REST_BYTES = 4096  # of a body, beside its ids


class TextEndpoint:
    """An ASGI application that answers a body with a body, computed off the loop."""

    def __init__(self, service: Service, answer: Callable[[Service, bytes], bytes]) -> None:
        self._service = service
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange, settings = Exchange(scope, receive, send), self._service.settings
        try:
            body = await exchange.read_body(settings.max_body_bytes, settings.body_timeout_s)
            answer = await self._service.prepare(lambda: self._answer(self._service, body))
            await exchange.send_json(200, answer, [(b"content-type", b"application/json")])
        except ApiError as error:
            await exchange.send_error(error)
        except ClientGone:
            return


def tokenize(service: Service, body: bytes) -> bytes:
    """Tokens of a prompt, or of messages as a chat would see them. Raises `ApiError`."""
    request = decode_request(body, TokenizeRequest)
    check_model(request.model, service.settings.name)
    if request.chat_template:
        raise unsupported("chat_template")
    tokens = _tokens(service, request)
    piece_of = service.loaded.model.piece
    texts = [piece_of(token).decode(errors="replace") for token in tokens] if request.return_token_strs else None
    return encode_json(TokenizeAnswer(len(tokens), service.prompts.max_tokens, tokens, texts))


def detokenize(service: Service, body: bytes) -> bytes:
    """The text of tokens, control tokens left out. Raises `ApiError`."""
    most = service.prompts.max_tokens
    if len(body) > most * _ID_BYTES + _REST_BYTES:  # before a list is made of it, which holds up the answers of others
        raise invalid("tokens", f"`tokens` may hold at most {most} tokens")
    request = decode_request(body, DetokenizeRequest)
    check_model(request.model, service.settings.name)
    if len(request.tokens) > most:
        raise invalid("tokens", f"`tokens` may hold at most {most} tokens")
    vocab_size = service.loaded.vocab_size
    if any(not 0 <= token < vocab_size for token in request.tokens):
        raise invalid("tokens", f"each of `tokens` must be at least 0 and below {vocab_size}")
    text = b"".join(map(service.loaded.model.piece, request.tokens)).decode(errors="replace")
    return encode_json(DetokenizeAnswer(text))


def _tokens(service: Service, request: TokenizeRequest) -> Tokens:
    if (request.prompt is None) == (request.messages is None):
        raise invalid("prompt", "exactly one of `prompt` and `messages` is needed")
    adds_special = request.add_special_tokens is not False
    if request.prompt is not None and adds_special and not service.loaded.generates and service.vectors is not None:
        return tuple(service.vectors.read_inputs(request.prompt)[0])
    if request.prompt is not None:
        return service.prompts.text(request.prompt, adds_special=adds_special)
    extras = ChatExtras(
        tools=request.tools or (), documents=request.documents or (), variables=request.chat_template_kwargs or {}
    )
    return service.prompts.conversation(
        request.messages or [],
        extras,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=bool(request.continue_final_message),
    ).tokens
