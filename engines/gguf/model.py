"""The vocabulary, template and weights of one GGUF file.

Encoding is thread-safe: a vocabulary never changes once loaded. What runs the weights is runner.py.
"""

import functools
import re
from pathlib import Path
from typing import Any

from engines.gguf.gpu import choose_gpu_layers
from engines.gguf.header import ModelFileError, read_header
from engines.gguf.library import Library
from engines.gguf.long_text import MAX_PIECE_CHARACTERS, cut_long_text

# llama_token_attr, as bits
_UNKNOWN, _CONTROL, _USER_DEFINED = 1 << 0, 1 << 3, 1 << 4
_SENTENCE_PIECE = 1  # llama_vocab_type
_PIECE_BYTES = 256
RANK_POOLING = 4  # llama_pooling_type


class GgufModel:
    """A loaded GGUF file, as `TextModel` of engines/core/plan.py.

    `name`: the file's name without its ending. `adds_bos`: a bare prompt (not a chat template, which writes its own)
    starts with `bos_text`. `vocab_size`: token ids are [0, vocab_size). `kv_token_bytes`: what one token's KV takes,
    None where the file's layers differ. `gpu_layers`: how many of them lie on GPUs. `pooling`: as the file says, None
    for a model that only generates.
    """

    def __init__(self, path: Path, library: Library, *, embeds: bool = False, kv_tokens: int = 0) -> None:
        """Load `path`, to generate or to embed; `kv_tokens`: what a GPU would have to hold beside its weights.

        Raises `ModelFileError` with one sentence if it is not a whole, usable model of that kind.
        """
        header = read_header(path)
        if not embeds and (header.pooling == RANK_POOLING or not header.is_causal):
            raise ModelFileError(f"The model {path} ({header.architecture}) embeds or ranks texts; it generates none.")
        self.library = library
        self.pooling = header.pooling
        kv_bytes = (header.kv_token_bytes or 0) * kv_tokens
        self.gpu_layers = choose_gpu_layers(library, header.num_layers, header.file_bytes, kv_bytes)
        self._pointer = _load_weights(path, header.architecture, library, self.gpu_layers)
        c, ffi = library.c, library.ffi
        self._vocab = c.llama_model_get_vocab(self._pointer)
        self.name = path.stem
        self.kv_token_bytes = header.kv_token_bytes
        self.context_tokens: int = c.llama_model_n_ctx_train(self._pointer)
        self.vocab_size: int = c.llama_vocab_n_tokens(self._vocab)
        self.adds_bos: bool = c.llama_vocab_get_add_bos(self._vocab)
        self.chat_template = self._template(ffi.NULL)
        self._rerank_template = self._template(b"rerank")
        if c.llama_vocab_type(self._vocab) == _SENTENCE_PIECE and not self._spells_every_byte():
            raise ModelFileError(f"The model file {path} is damaged: its vocabulary lacks some of the 256 bytes.")
        self._pieces: list[bytes | None] = [None] * self.vocab_size
        self._read_tokens()

    def _spells_every_byte(self) -> bool:
        """Whether any text has tokens. Where a byte has none, the library would end the process as it meets it."""
        c, ffi, vocab = self.library.c, self.library.ffi, self._vocab
        texts = {bytes(ffi.string(c.llama_vocab_get_text(vocab, token))) for token in range(self.vocab_size)}
        return all(b"<0x%02X>" % byte in texts or bytes([byte]) in texts for byte in range(256))

    def _read_tokens(self) -> None:
        c, vocab = self.library.c, self._vocab
        bits = [c.llama_vocab_get_attr(vocab, token) for token in range(self.vocab_size)]
        self._control_ids = frozenset(token for token, attr in enumerate(bits) if attr & (_CONTROL | _UNKNOWN))
        self.special_texts = frozenset(map(self._text, self._control_ids)) - {""}
        self.eos_ids = frozenset(token for token in range(self.vocab_size) if c.llama_vocab_is_eog(vocab, token))
        self.bos_text = self._text(c.llama_vocab_bos(vocab))
        self.eos_text = self._text(c.llama_vocab_eos(vocab))
        defined = {self._text(token) for token, attr in enumerate(bits) if attr & _USER_DEFINED}
        markers = sorted((self.special_texts | defined) - {""}, key=len, reverse=True)
        self._longest_marker = len(markers[0]) if markers else 0
        self._markers = re.compile("|".join(map(re.escape, markers))) if markers else None

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids, without a BOS of our own. With `special` control tokens' texts become them; without, never.

        Half surrogate pairs, which no UTF-8 text has, count as question marks.
        """
        if len(text) <= MAX_PIECE_CHARACTERS:
            return self._encode_piece(text, special=special)
        tokens: list[int] = []
        for piece in cut_long_text(text, self._markers, self._longest_marker):
            tokens += self._encode_piece(piece, special=special)
        return tokens

    def piece(self, token: int) -> bytes:
        """The bytes of one token (control tokens: empty). Raises `ValueError` for an id outside the vocabulary."""
        if not 0 <= token < self.vocab_size:
            raise ValueError(f"token {token} is not in a vocabulary of {self.vocab_size}")
        found = self._pieces[token]
        if found is None:
            found = self._pieces[token] = self._render(token, special=False)
        return found

    def encode_as_input(self, text: str) -> list[int]:
        """Token ids between the special tokens that the file puts around an input; control texts stay text."""
        before, after = self._around
        return [*before, *self.encode(text, special=False), *after]

    def encode_pair(self, query: str, document: str) -> list[int]:
        """Token ids of a query and a document as one input of a rerank model.

        By the file's own template for it, else both texts with the marks between them that the vocabulary asks for.
        """
        if self._rerank_template is not None:
            return self._fill_in(self._rerank_template, {"{query}": query, "{document}": document})
        c, vocab = self.library.c, self._vocab
        end, separator = c.llama_vocab_eos(vocab), c.llama_vocab_sep(vocab)
        ends = [end if end >= 0 else separator] if c.llama_vocab_get_add_eos(vocab) else []
        between = [*ends, *([separator] if c.llama_vocab_get_add_sep(vocab) and separator >= 0 else [])]
        before, after = self._around
        middle = between or after
        return [*before, *self.encode(query, special=False), *middle, *self.encode(document, special=False), *after]

    def _fill_in(self, template: str, texts: dict[str, str]) -> list[int]:
        """The template's control texts become control tokens, those in what is filled in never do."""
        parts = re.split("(" + "|".join(map(re.escape, texts)) + ")", template)
        pieces = (self.encode(texts.get(part, part), special=part not in texts) for part in parts)
        return [token for piece in pieces for token in piece]

    @functools.cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """What the library itself puts before and behind a text."""
        bare = self._tokenize(b"a", special=False)
        whole = self._tokenize(b"a", special=False, around=True)
        starts = [at for at in range(len(whole)) if whole[at : at + len(bare)] == bare]
        at = starts[0] if bare and starts else 0
        return whole[:at], whole[at + len(bare) :]

    @property
    def pointer(self) -> Any:
        """The `llama_model *`, freed when nothing refers to it any more."""
        return self._pointer

    def _encode_piece(self, text: str, *, special: bool) -> list[int]:
        tokens = self._tokenize(text.encode(errors="replace"), special=special)
        if special or self._control_ids.isdisjoint(tokens):
            return tokens
        # Some vocabularies merge ordinary characters into a control token; then its characters go in one by one.
        safe: list[int] = []
        for token in tokens:
            safe += self._spelled(token) if token in self._control_ids else (token,)
        return safe

    def _spelled(self, control: int) -> list[int]:
        letters = (self._tokenize(letter.encode(), special=False) for letter in self._text(control))
        return [token for letter in letters for token in letter if token not in self._control_ids]

    def _tokenize(self, text: bytes, *, special: bool, around: bool = False) -> list[int]:
        ffi = self.library.ffi
        room = len(text) + 16  # a token covers at least a byte; some vocabularies add a space in front
        buffer = ffi.new("llama_token[]", room)
        count = self.library.c.llama_tokenize(self._vocab, text, len(text), buffer, room, around, special)
        assert count >= 0, f"{len(text)} bytes became more than {room} tokens"
        return list(ffi.unpack(buffer, count)) if count else []

    def _template(self, name: Any) -> str | None:
        ffi = self.library.ffi
        template = self.library.c.llama_model_chat_template(self._pointer, name)
        return None if template == ffi.NULL else bytes(ffi.string(template)).decode(errors="replace")

    def _text(self, token: int) -> str:
        """The token as text, control tokens too; empty for a token the vocabulary lacks."""
        return self._render(token, special=True).decode(errors="replace") if 0 <= token < self.vocab_size else ""

    def _render(self, token: int, *, special: bool) -> bytes:
        ffi, c = self.library.ffi, self.library.c
        buffer = ffi.new("char[]", _PIECE_BYTES)
        count = c.llama_token_to_piece(self._vocab, token, buffer, _PIECE_BYTES, 0, special)
        if count < 0:  # minus the room it needs
            buffer = ffi.new("char[]", -count)
            count = c.llama_token_to_piece(self._vocab, token, buffer, -count, 0, special)
        return bytes(ffi.buffer(buffer, max(0, count)))


def _load_weights(path: Path, architecture: str, library: Library, gpu_layers: int) -> Any:
    c, ffi = library.c, library.ffi
    library.log.take_errors()
    params = c.llama_model_default_params()
    params.n_gpu_layers = gpu_layers
    pointer = c.llama_model_load_from_file(str(path).encode(), params)
    if pointer == ffi.NULL:
        why = library.log.take_errors() or "llama.cpp does not say why"
        raise ModelFileError(f"llama.cpp cannot load the model file {path}: {why}.")
    model = ffi.gc(pointer, c.llama_model_free)
    if c.llama_model_has_encoder(model) or not c.llama_model_has_decoder(model) or c.llama_model_is_diffusion(model):
        raise ModelFileError(f"The model {path} ({architecture}) does not generate text token by token.")
    if c.llama_model_is_recurrent(model) or c.llama_model_is_hybrid(model):
        raise ModelFileError(f"The model {path} ({architecture}) keeps a running state, which cannot share prefixes.")
    if c.llama_vocab_n_tokens(c.llama_model_get_vocab(model)) < 1:
        raise ModelFileError(f"The model {path} has no vocabulary.")
    return model
