"""Tokens of a text and the text of tokens, in vLLM's shape whatever the engine calls them. Pure."""

import msgspec


class _Piece(msgspec.Struct):
    id: int
    piece: str | list[int] = ""

    def text(self) -> str:
        return self.piece if isinstance(self.piece, str) else bytes(self.piece).decode(errors="replace")


class _Tokens(msgspec.Struct):
    tokens: list[int | _Piece]
    token_strs: list[str] | None = None
    max_model_len: int | None = None


class _Text(msgspec.Struct):
    prompt: str | None = None  # vLLM's and our worker's
    text: str | None = None  # SGLang's
    content: str | None = None  # llama-server's


_decode_tokens = msgspec.json.Decoder(_Tokens).decode
_decode_text = msgspec.json.Decoder(_Text).decode
_encode = msgspec.json.Encoder().encode


def tokens(body: bytes) -> bytes:
    """`{count, max_model_len, tokens, token_strs}`; null where the engine does not say. Raises `ValueError`."""
    found = _decode_tokens(body)
    ids = [one if isinstance(one, int) else one.id for one in found.tokens]
    texts = found.token_strs
    if texts is None and ids and all(isinstance(one, _Piece) for one in found.tokens):
        texts = [one.text() for one in found.tokens if isinstance(one, _Piece)]
    if texts is not None and len(texts) != len(ids):
        raise ValueError(f"{len(ids)} tokens and {len(texts)} texts of them")
    return _encode({"count": len(ids), "max_model_len": found.max_model_len, "tokens": ids, "token_strs": texts})


def count(body: bytes, kind: str = "") -> bytes:
    """Anthropic's `{input_tokens}`, OpenAI's with `kind` as its `object`. Raises `ValueError`."""
    return counted(len(_decode_tokens(body).tokens), kind)


def counted(num_tokens: int, kind: str = "") -> bytes:
    """The same of a number that is known."""
    return _encode({"object": kind, "input_tokens": num_tokens} if kind else {"input_tokens": num_tokens})


def text(body: bytes) -> bytes:
    """`{prompt}`. Raises `ValueError`."""
    found = _decode_text(body)
    said = next((one for one in (found.prompt, found.text, found.content) if one is not None), None)
    if said is None:
        raise ValueError("no text")
    return _encode({"prompt": said})
