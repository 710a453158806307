"""Guesses at a sequence's next tokens, made of its own: where its last tokens stood before, what followed them then.

No second model: code edits, retrieved passages and JSON repeat what is in their prompt. Guesses cost only the time of
verifying them (decoding.py), so each sequence keeps an account of how often its own hold, and rests when they do not.
Grammars guess too, where they leave no choice. Tokens in, tokens out: no clock, no logits.
"""

from array import array

from engines.core.grammar import GrammarState

_MAX_INDEXED = 1 << 15  # tokens of a sequence; about 120 bytes each; chosen
_INDEXED_AT_ONCE = 2048  # so that a long prompt holds up no step: some 0.5 ms; chosen
_CANDIDATES = 8  # earlier places that are compared; chosen
_LONGEST_MATCH = 4
_FADE = 0.9  # of the account with each draft that held or failed: about the last ten; chosen
_HOPE = 0.6  # what is believed of drafts before the first; chosen
_REST_BELOW = 0.2  # chosen: below it, even a tenth of a row's price would not pay
_REST_TOKENS = 32  # for so long none are made; then a few, to see whether the text has changed; chosen


class PromptLookup:
    """An index of all pairs of neighbouring tokens of one growing sequence, newest first. Bounded."""

    def __init__(self) -> None:
        self._newest: dict[int, int] = {}  # by pair, the position behind it
        self._before = array("i", (-1, -1))  # by position, the one before it with the same pair

    def __repr__(self) -> str:
        return f"<PromptLookup {len(self._before)} tokens>"

    def extend(self, tokens: list[int]) -> bool:
        """Index some of the tokens that are new, but for the last pair, which is what will be looked up.

        False if there are more to index yet. `tokens` is what it was at the last call and more.
        """
        newest, before = self._newest, self._before
        start = len(before)
        wanted = min(len(tokens), _MAX_INDEXED)
        end = min(wanted, start + _INDEXED_AT_ONCE)
        for position in range(start, end):
            pair = tokens[position - 2] << 32 | tokens[position - 1]
            before.append(newest.get(pair, -1))
            newest[pair] = position
        return end >= wanted

    def find(self, tokens: list[int], most: int) -> tuple[int, ...]:
        """Up to `most` tokens that followed the longest earlier match (2 to 4 tokens) of the last ones.

        Of equal matches the newest counts. Where what follows reaches the end it goes round: repetition repeats.
        """
        length = len(tokens)
        if length < 3:
            return ()
        position = self._newest.get(tokens[-2] << 32 | tokens[-1], -1)
        best, longest = -1, 0
        for _ in range(_CANDIDATES):
            if position < 0:
                break
            matched = _match_length(tokens, position)
            if matched > longest:
                best, longest = position, matched
                if longest == _LONGEST_MATCH:
                    break
            position = self._before[position]
        if best < 0:
            return ()
        period = length - best
        return tuple(tokens[best + index % period] for index in range(most))


def _match_length(tokens: list[int], position: int) -> int:
    """How many tokens before `position`, 2 to 4, are the last ones; the pair is known to be."""
    matched = 2
    while matched < _LONGEST_MATCH and position > matched and tokens[position - matched - 1] == tokens[-matched - 1]:
        matched += 1
    return matched


class Speculation:
    """One sequence's drafts: where they come from, and how often they have held."""

    def __init__(self) -> None:
        self._lookup = PromptLookup()
        self._chance = {True: 1.0, False: _HOPE}  # that a draft holds: forced by a grammar, or looked up
        self._resting_until = 0
        self._is_forced = False

    def __repr__(self) -> str:
        return f"<Speculation {self._chance[False]:.2f} {self._lookup!r}>"

    @property
    def chance(self) -> float:
        """That the next of the drafts just proposed holds, if those before it do; 0..1."""
        return self._chance[self._is_forced]

    def propose(self, tokens: list[int], grammar: GrammarState | None, most: int) -> tuple[int, ...]:
        """Up to `most` drafts, all of which the grammar allows; often none."""
        if most < 1:
            return ()
        forced = grammar.forced()[:most] if grammar is not None and self._chance[True] > _REST_BELOW else []
        self._is_forced = bool(forced)
        if forced:
            return tuple(forced)
        if not self._lookup.extend(tokens) or len(tokens) < self._resting_until:
            return ()
        drafts = self._lookup.find(tokens, most)
        if grammar is not None and drafts:
            drafts = drafts[: grammar.allowed_prefix(list(drafts))]
        return drafts

    def learn(self, num_drafts: int, num_held: int, num_tokens: int) -> None:
        """What became of the drafts last proposed. `num_tokens`: of the sequence now."""
        kept = _FADE**num_held
        chance = self._chance[self._is_forced] * kept + (1 - kept)
        if num_held < num_drafts:
            chance *= _FADE
        if chance < _REST_BELOW and not self._is_forced:
            self._resting_until = num_tokens + _REST_TOKENS
            chance = (_REST_BELOW + _HOPE) / 2
        self._chance[self._is_forced] = chance
