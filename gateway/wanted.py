"""What is asked of a surface that generates no text: how much is to be read, and what its answer has to hold."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vectors:
    """So many embeddings. `dimensions`: what was asked for, None for the model's own."""

    num: int
    as_base64: bool
    dimensions: int | None


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best `num` of these documents, with their texts if `shows`."""

    documents: tuple[str, ...]
    num: int
    shows: bool


@dataclass(frozen=True, slots=True)
class Scores:
    """A score for each of so many pairs."""

    num: int


@dataclass(frozen=True, slots=True)
class TokenList:
    """The tokens of a text."""


@dataclass(frozen=True, slots=True)
class TokenCount:
    """How many tokens a conversation has. `object`: what the answer calls itself; empty as Anthropic's clients ask."""

    object: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """The text of tokens."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """What is said in an audio file: as JSON, or as a text that stands alone."""

    is_json: bool


Wanted = Vectors | Ranking | Scores | TokenList | TokenCount | Text | Transcript


@dataclass(frozen=True, slots=True)
class Inputs:
    """`surface`: as engines have it (`engines/adapters/surfaces.py`). `content`: what draws the request's home.

    `num_bytes`: of all that a model reads, `num_tokens` of it where they are counted. `is_free`: the model itself is
    not run, so no tokens are charged. `teaches`: what an engine counts of it says something of texts.
    """

    surface: str
    wanted: Wanted
    content: bytes
    num_bytes: int = 0
    num_tokens: int | None = None
    is_free: bool = False
    teaches: bool = True
