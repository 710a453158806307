"""How large a pattern is when its repetitions are multiplied out: a bound that needs no parser of patterns. Pure.

Read as any flavour of regular expression or grammar would read it: brackets group, `{n,m}` repeats what stands before,
a backslash takes the next character's meaning. Where a text is none of these the numbers are harmless.
"""

import re

_OPENING, _CLOSING = "([{", ")]}"
_REPETITION = re.compile(r"\{(\d{0,18})(?:,(\d{0,18}))?\}")
MOST = 1 << 40  # where counting ends


def paren_depth(pattern: str) -> int:
    """The deepest nesting of round brackets that are not escaped."""
    depth = deepest = 0
    is_escaped = False
    for char in pattern:
        if is_escaped:
            is_escaped = False
        elif char == "\\":
            is_escaped = True
        elif char == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif char == ")":
            depth = max(0, depth - 1)
    return deepest


def pattern_weight(pattern: str) -> int:
    """Characters of the pattern with each repetition written out so often; at most `MOST`.

    `*` and `+` count once: they make loops, not copies.
    """
    groups = [0]  # weights of the open groups so far
    last = 0  # weight of what a repetition would repeat
    index = 0
    while index < len(pattern):
        char = pattern[index]
        repetition = _REPETITION.match(pattern, index) if char == "{" else None
        if repetition is not None:
            times = max((int(digits) for digits in repetition.groups() if digits), default=1)
            grown = min(MOST, last * max(1, times))
            groups[-1] = min(MOST, groups[-1] + grown - last)
            last = grown
            index = repetition.end()
            continue
        if char == "(":
            groups.append(0)
        elif char == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] = min(MOST, groups[-1] + last)
        elif char == "[":
            index = _class_end(pattern, index)
            last = 1
            groups[-1] += 1
        elif char not in "*+?|)":
            last = 1
            groups[-1] += 1
            index += char == "\\"
        index += 1
    return min(MOST, sum(groups))


def _class_end(pattern: str, start: int) -> int:
    """Where the character class that begins at `start` ends; the start itself if it never does."""
    index = start + 1
    while index < len(pattern):
        if pattern[index] == "\\":
            index += 1
        elif pattern[index] == "]" and index > start + 1:
            return index
        index += 1
    return start
