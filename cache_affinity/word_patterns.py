"""How engines cut text into words before they merge bytes, by the name of a vocabulary's kind (`pre` of a GGUF file).

Each pattern gives llama.cpp's words, which tests hold against llama.cpp itself over a corpus and random mixtures. For
some kinds it cuts by several patterns in turn; the later see only what lies between matches of the earlier, where text
ends: hence a space before a number. Kinds that differ in anything else (normalised text, marks of a word's end) are not
here. Letters newer than Unicode 15 may be cut otherwise: the tables differ.
"""

_SHORT = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"  # not (?i): that takes the long s for an s
_SPACE = r"\s+(?!\S)|\s+"
_GPT_2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|{_SPACE}"
_SMOLLM = rf"\p{{N}}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?=\p{{N}})|{_SPACE}"


def _llama_3(numbers: str, letter: str = r"\p{L}", no_mark: str = "") -> str:
    """Words with the one character before them. `letter`: what they are made of, `no_mark`: what marks are not."""
    words = rf"[^\r\n\p{{L}}\p{{N}}]?{letter}+"
    return rf"{_SHORT}|{words}|{numbers}| ?[^\s\p{{L}}{no_mark}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACE}"


def _gpt_4o(numbers: str, short: str) -> str:
    """Words that end where small letters are followed by others. `short`: what may hang on to a word."""
    before, upper, lower = r"[^\r\n\p{L}\p{N}]?", r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"
    words = f"{before}{upper}*{lower}+{short}|{before}{upper}+{lower}*{short}"
    return rf"{words}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|{_SPACE}"


_FAMILIES: dict[str, tuple[str, ...]] = {
    _GPT_2: ("gpt-2", "phi-2", "olmo", "mpt", "jais"),
    _SMOLLM: ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"),
    _llama_3(r"\p{N}{1,3}"): ("llama-bpe", "dbrx", "smaug-bpe", "glm4", "falcon3", "pixtral", "lfm2"),
    _llama_3(r"\p{N}"): ("qwen2", "stablelm2", "deepseek-r1-qwen", "hunyuan"),
    _llama_3(r"\p{N}", r"[\p{L}\p{M}]", r"\p{M}"): ("qwen35",),
    _gpt_4o(r"\p{N}", ""): ("tekken",),
    _gpt_4o(r"\p{N}{1,3}", rf"(?:{_SHORT})?"): ("gpt-4o", "llama4"),
}
WORD_PATTERNS = {kind: pattern for pattern, kinds in _FAMILIES.items() for kind in kinds}
# A word that is a token is that token, whatever merges would make of it.
WHOLE_WORDS = frozenset({"llama-bpe", "falcon3", "pixtral", "lfm2", "tekken", "glm4"})
# A plain prompt begins with the token of a beginning where the file does not say whether.
BEGINS = WHOLE_WORDS - {"glm4"}
