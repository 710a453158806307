"""A model's vocabulary as llguidance wants to see it."""

from llguidance import LLTokenizer, TokenizerWrapper

from engines.core.plan import TextModel

_SPECIAL = b"\xff"  # no UTF-8 has it, so no text of a grammar can be spelled with a control token


class _Vocabulary:
    """What `TokenizerWrapper` asks of a tokenizer. `tokens`: bytes of each token, control tokens marked."""

    def __init__(self, model: TextModel, vocab_size: int) -> None:
        special = {}
        for text in sorted(model.special_texts):
            tokens = model.encode(text, special=True)
            if len(tokens) == 1:
                special[tokens[0]] = text
        self._model = model
        self.eos_token_id = min(model.eos_ids, default=0)
        self.bos_token_id = None
        self.special_token_ids = sorted(special)
        self.tokens = [
            _SPECIAL + special[token].encode() if token in special else model.piece(token)
            for token in range(vocab_size)
        ]

    def __call__(self, text: str | bytes) -> list[int]:
        """Token ids of plain text, which need not be valid UTF-8."""
        readable = text if isinstance(text, str) else text.decode(errors="replace")
        return self._model.encode(readable, special=False)


def grammar_tokenizer(model: TextModel, vocab_size: int) -> LLTokenizer:
    """The vocabulary with its trie; takes some tenths of a second. All of the model's end tokens end a grammar."""
    wrapper = TokenizerWrapper(_Vocabulary(model, vocab_size))
    return LLTokenizer(wrapper, n_vocab=vocab_size, eos_token=sorted(model.eos_ids) or None)
