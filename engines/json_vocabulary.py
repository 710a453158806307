"""A Hugging Face `tokenizer.json` and the chat template beside it, run by the library that vLLM and SGLang run it by.

So tokens are theirs for every kind of vocabulary, SentencePiece's too. Texts of control tokens count in clients'
messages as well, as they do in these engines: hence no `special_texts`. The library is an extra of its own.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cache_affinity.vocabulary import UnknownVocabulary

_MAX_BYTES = 256 << 20  # of one file; the largest in use have 35 MB
TOKENIZER, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"


def is_json_vocabulary(path: Path) -> bool:
    """Whether a path names a `tokenizer.json`, or a folder that holds one."""
    return path.suffix == ".json" or (path / TOKENIZER).is_file()


class JsonText:
    """Vocabulary and template of one model's folder, as the `TextModel` of engines/core/plan.py. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """`path`: of the file or its folder. Raises `UnknownVocabulary`."""
        file = path / TOKENIZER if path.is_dir() else path
        self._engine = _engine(file)
        config = _config(file.with_name(CONFIG))
        self.name = file.parent.name
        self.vocab_size = int(self._engine.get_vocab_size(with_added_tokens=True))
        self.special_texts: frozenset[str] = frozenset()
        self.chat_template = _template(file.with_name(TEMPLATE), config)
        self.bos_text, self.eos_text = (_text(config.get(f"{name}_token")) for name in ("bos", "eos"))
        bos = self._engine.token_to_id(self.bos_text) if self.bos_text else None
        begun = self._engine.encode("a").ids
        self.adds_bos = bos is not None and begun[:1] == [bos]
        self.eos_ids: frozenset[int] = frozenset()  # whoever only reads prompts ends nothing

    def __repr__(self) -> str:
        return f"<JsonText {self.name} {self.vocab_size} tokens>"

    def encode(self, text: str, *, special: bool) -> list[int]:  # noqa: ARG002  # engines make no difference
        """Token ids, without a token of the beginning. Half surrogate pairs count as question marks."""
        plain = text.encode(errors="replace").decode()
        return list(self._engine.encode(plain, add_special_tokens=False).ids)

    def piece(self, token: int) -> bytes:
        """About the bytes of one token: never fewer than it stands for."""
        return (self._engine.id_to_token(token) or "").encode()


def _engine(file: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UnknownVocabulary("a tokenizer.json needs `pip install warmlane[tokenizers]`") from None
    try:
        return Tokenizer.from_str(_read(file))
    except Exception as error:  # the library raises nothing narrower
        raise UnknownVocabulary(f"{file} cannot be read: {error}") from error


def _read(file: Path) -> str:
    if file.stat().st_size > _MAX_BYTES:
        raise ValueError("it is larger than 256 MiB")
    return file.read_text(encoding="utf-8")


def _config(file: Path) -> Mapping[str, object]:
    """The file beside the vocabulary; a model may have none. Raises `UnknownVocabulary` for one that cannot be read."""
    if not file.is_file():
        return {}
    try:
        found = json.loads(_read(file))
    except (OSError, ValueError, RecursionError) as error:
        raise UnknownVocabulary(f"{file} cannot be read: {error}") from error
    return found if isinstance(found, dict) else {}


def _template(file: Path, config: Mapping[str, object]) -> str | None:
    """A file of its own counts, as in the engines; of several named ones the default."""
    if file.is_file():
        try:
            return _read(file)
        except (OSError, ValueError) as error:
            raise UnknownVocabulary(f"{file} cannot be read: {error}") from error
    found = config.get("chat_template")
    if isinstance(found, list):
        named = (one for one in found if isinstance(one, dict) and one.get("name") == "default")
        found = next(named, {}).get("template")
    return found if isinstance(found, str) else None


def _text(token: object) -> str:
    """A special token's text: alone, or with how it is matched."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""
