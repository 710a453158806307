"""Text for recorded requests: equal blocks become equal words, so that real engines share what the recording shares.

A block of n tokens is n common words, each of which is one token with its space in the vocabularies in use; an engine's
chat template adds a little. The map is fixed: the same recording and salt give the same text on every machine.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import shake_128

from gateway.simulation.recording import RecordedRequest, Recording, TraceFacts

_KEPT_BLOCKS = 4096  # texts kept for the next prompt that holds them; of 512 tokens 10 MB
# Words of one token each with the space before them: checked with SmolLM2; so common that other vocabularies have them.
_WORD_LIST = """
    the and for are but not you all any can her was one our out day get has him his how man new now old see two
    way who boy did its let put say she too use about after again also another because before being between both
    came come could down each even every find first from give good great hand have help here high home house
    just keep know large last left life like line little live long look made make many may mean men might more
    most much must name need never next number off often only open order other over own page part people place
    play point present public read right said same school seem set should show side small some something sound
    spell state still story study such take tell than that their them then there these they thing think this
    those thought three through time together took turn under until very want water well were what when where
    which while white why will with without word work world would write year young air animal answer area ask
    base began below best better big black blue body book box bring build business call car care case cause
    center change check children city class close cold common country course cross cut dark deep draw drive
    early earth ease east eat end enough face fact fall family far farm fast father feel feet field figure final
    fine fire fish five fly follow food foot force form found four free friend front full game
"""
WORDS = tuple(_WORD_LIST.split())


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One request to send. `due_s`: seconds after the first one, as recorded. `prompt_tokens`: about."""

    number: int
    due_s: float
    prompt: str
    prompt_tokens: int
    output_tokens: int


def texts_of(recording: Recording, *, scale: int = 1, salt: str = "") -> Iterator[TextRequest]:
    """The requests in order of arrival. `scale`: lengths are divided by it, what is shared stays shared.

    `salt`: another one is another text throughout, so that no cache holds anything of an earlier run.
    """
    size = max(1, recording.block_tokens // scale)
    for request in recording.requests:
        length = max(1, request.prompt_tokens // scale)
        yield TextRequest(
            request.number,
            request.arrival_s - recording.requests[0].arrival_s,
            _prompt(request, size, length, salt),
            length,
            max(1, request.output_tokens // scale),
        )


def scaled(facts: TraceFacts, scale: int) -> TraceFacts:
    """The facts of a recording with lengths divided, about."""
    return TraceFacts(
        facts.requests, max(facts.requests, facts.prompt_tokens // scale),
        max(facts.requests, facts.output_tokens // scale), facts.oracle_hit_tokens // scale, facts.duration_s,
    )  # fmt: skip


def _prompt(request: RecordedRequest, size: int, length: int, salt: str) -> str:
    """Its full blocks, then the rest, which equal prompts have in common."""
    blocks = [some_words(f"{salt}/{name}", size) for name in request.blocks[: length // size]]
    rest = length - len(blocks) * size
    if rest:
        blocks.append(some_words(f"{salt}/rest/{request.key.hashes[-1]}", rest))
    return " ".join(blocks)


@lru_cache(maxsize=_KEPT_BLOCKS)
def some_words(name: str, num: int) -> str:
    """So many words, drawn by the name: about as many tokens."""
    return " ".join([WORDS[byte] for byte in shake_128(name.encode()).digest(num)])
