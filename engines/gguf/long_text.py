"""Where a long text is cut before it is tokenized.

llama.cpp splits words with a recursive regular expression for many byte-pair vocabularies: measured, a run of 30,000
letters overflows an 8 MB stack and kills the process. Pieces this short cannot, on any thread's stack.
"""

import re
from collections.abc import Iterator

MAX_PIECE_CHARACTERS = 4096

# No byte-pair vocabulary joins what stands before these places with what follows.
_BORDER = re.compile(r"(?<=\n)(?=\S)|(?<=\S)(?= \S)")


def cut_long_text(text: str, markers: re.Pattern[str] | None, longest_marker: int) -> Iterator[str]:
    """Pieces of at most `MAX_PIECE_CHARACTERS` that join to `text`.

    Cut between words where there is a word border, else anywhere, but never inside a match of `markers`, each at
    most `longest_marker` characters.
    """
    start = 0
    while len(text) - start > MAX_PIECE_CHARACTERS:
        cut = _cut(text, start, start + MAX_PIECE_CHARACTERS)
        if markers is not None:
            cut = _outside_markers(text, start, cut, markers, longest_marker)
        yield text[start:cut]
        start = cut
    if start < len(text):
        yield text[start:]


def _cut(text: str, start: int, limit: int) -> int:
    # Look back over the last quarter only: a border is nearly always near, and cutting stays linear in the text.
    borders = [match.start() for match in _BORDER.finditer(text, start + 3 * MAX_PIECE_CHARACTERS // 4, limit)]
    return borders[-1] if borders else limit


def _outside_markers(text: str, start: int, cut: int, markers: re.Pattern[str], longest_marker: int) -> int:
    for match in markers.finditer(text, max(start, cut - longest_marker), cut + longest_marker):
        if match.start() < cut < match.end() and match.start() > start:
            return match.start()
    return cut
