"""Stop strings: which part of a growing text may be sent, and where it ends. Pure; characters in, text out.

The match is the one that is complete first, and among those the one that began first, so the cut does not depend on
how the text was split over tokens. What could still become a stop string is held back, and nothing else.
"""

from collections import deque
from collections.abc import Sequence


class StopMatcher:
    """An automaton over the characters of all stop strings (Aho and Corasick). Immutable, shared by all choices.

    State 0 is the empty prefix. The depth of a state is how many of the last characters could still begin a stop
    string; a state with a match length ends one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string matches everywhere"
        self._next: list[dict[str, int]] = [{}]
        self.depth: list[int] = [0]
        self.match_length: list[int] = [0]
        for stop in stops:
            self._insert(stop)
        self._fail = [0] * len(self._next)
        self._link()

    def _insert(self, stop: str) -> None:
        state = 0
        for char in stop:
            following = self._next[state].get(char)
            if following is None:
                following = len(self._next)
                self._next[state][char] = following
                self._next.append({})
                self.depth.append(self.depth[state] + 1)
                self.match_length.append(0)
            state = following
        self.match_length[state] = len(stop)

    def _link(self) -> None:
        """Where each state falls back to, and the longest stop string that ends there. Breadth first."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self._next[state].items():
                self._fail[child] = self.step(self._fail[state], char)
                queue.append(child)
            if self.match_length[state] == 0:
                self.match_length[state] = self.match_length[self._fail[state]]

    def step(self, state: int, char: str) -> int:
        """The state after one more character."""
        while state and char not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(char, 0)


class StopScanner:
    """The text of one choice on its way out. `matched`: a stop string was found, nothing more is released."""

    def __init__(self, matcher: StopMatcher, *, include_stop: bool = False) -> None:
        self._matcher = matcher
        self._include_stop = include_stop
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """What may be sent now, after `text` arrived. Empty after a match."""
        if self.matched is not None:
            return ""
        matcher, state = self._matcher, self._state
        for index, char in enumerate(text):
            state = matcher.step(state, char)
            length = matcher.match_length[state]
            if length:
                return self._cut(self._held + text[: index + 1], length)
        self._state = state
        pending = self._held + text
        border = len(pending) - matcher.depth[state]
        self._held = pending[border:]
        return pending[:border]

    def _cut(self, pending: str, length: int) -> str:
        self.matched = pending[-length:]
        self._held = ""
        return pending if self._include_stop else pending[:-length]

    def flush(self) -> str:
        """What was held back, when the text ends without a match. Harmless a second time."""
        held, self._held, self._state = self._held, "", 0
        return held
