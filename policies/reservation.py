"""One admitted request's share of its tenant's limits, from its arrival to its settlement."""

from collections.abc import Callable
from dataclasses import dataclass

from policies.meters import Counted, Meter, Meters, Moment, Short, Take
from policies.prices import Work, charged_tokens
from policies.quota_level import Level
from policies.quota_refusal import Rejected, over, unpriced

_MONEY = Counted.MONTH_MONEY  # a member is found in a module faster than in its enum


@dataclass(slots=True)
class Expected:
    """What a request is expected to cost, before it has run. `prompt_*`: of its prompt alone, which is known best.

    `nanousd`, `prompt_nanousd`: None for a model without a price.
    """

    tokens: int
    prompt_tokens: int
    nanousd: int | None = None
    prompt_nanousd: int | None = None


Held = tuple[Take, int, Meter, Level]  # what was taken, how much, of which meter; one for each limit of a request


class Reservation:
    """Ends exactly once, by `settle` or `undo`; a second end changes nothing.

    `settle` when the request was worked on: it stays counted in its minute, and tokens and money by what it cost.
    `undo` when a later step refused it: every counter is as if it had never come. `shadowed`: the first limit in
    shadow mode that would have refused it, and does not count it. `has_budgets`: whether tokens or money are limited.
    """

    __slots__ = ("_held", "_levels", "_meters", "_on_end", "_rank", "_requests", "_share", "has_budgets", "shadowed")

    def __init__(
        self, meters: Meters, rank: int, on_end: Callable[[], None], share: Callable[[int], int] | None
    ) -> None:
        """Made by `Quotas`, which adds each level that it counts in."""
        self._meters = meters
        self._rank = rank
        self._on_end: Callable[[], None] | None = on_end
        self._share = share
        self._levels: list[Level] = []
        self._requests: list[Take] = []
        self._held: list[Held] = []
        self.shadowed: Rejected | None = None
        self.has_budgets = False

    @property
    def has_ended(self) -> bool:
        """Whether the share was given back."""
        return self._on_end is None

    def enter(self, level: Level, request: Take | None) -> None:
        """Count the request in flight at a level. `request`: its place in the minute there."""
        level.in_flight[self._rank] += 1
        self._levels.append(level)
        if level.has_budgets:
            self.has_budgets = True
        if request is not None:
            self._requests.append(request)

    def shadow(self, rejected: Rejected) -> None:
        """A limit in shadow mode would have refused the request, as far as it is known."""
        if self.shadowed is None and rejected.pending is None:
            self.shadowed = rejected

    def hold(self, expected: Expected, moment: Moment) -> Rejected | None:
        """Take tokens and money of every level, or of none: the limit that refuses, if one does.

        An output that is only guessed never makes a request impossible: it is guessed no longer than the limit.
        """
        for level in self._levels:
            if not level.has_budgets:
                continue
            first = len(self._held)
            rejected = self._hold_level(level, expected, moment)
            if rejected is None:
                continue
            self._let_go(0 if not level.is_shadow else first, moment)
            if not level.is_shadow:
                return rejected
            self.shadow(rejected)
        return None

    def charge(self, work: Work, nanousd: int | None, moment: Moment) -> None:
        """The real cost is known: count it instead of what was held, once; later calls change nothing.

        `nanousd`: of the whole work; None where the model has no price.
        """
        held, self._held = self._held, []
        tokens = discount = None
        for take, _, meter, level in held:
            if meter.counted is _MONEY:
                take.correct(nanousd or 0, moment)
                continue
            if tokens is None or level.discount != discount:
                discount = level.discount
                tokens = charged_tokens(work, discount)
            take.correct(tokens, moment)

    def settle(self, moment: Moment) -> None:
        """Give back the seat in flight. What was held and not charged stays counted as it was expected."""
        if self._leave():
            for take, amount, _, _ in self._held:
                take.correct(amount, moment)
            self._held = []
            for request in self._requests:
                request.correct(1, moment)

    def undo(self, moment: Moment) -> None:
        """Give back everything, the place in the minute too."""
        if self._leave():
            self._let_go(0, moment)
            for request in self._requests:
                request.undo(moment)

    def _leave(self) -> bool:
        """Whether this is the first end."""
        on_end, self._on_end = self._on_end, None
        if on_end is None:
            return False
        for level in self._levels:
            level.in_flight[self._rank] -= 1
        on_end()
        return True

    def _hold_level(self, level: Level, expected: Expected, moment: Moment) -> Rejected | None:
        take, share, held = self._meters.take, self._share, self._held
        for meter in level.budgets(moment.unix):
            amount, least = expected.tokens, expected.prompt_tokens
            if meter.counted is _MONEY:
                if expected.nanousd is None or expected.prompt_nanousd is None:
                    return unpriced(level.scope, meter.limit, self._meters.remaining(meter, moment)[0])
                amount, least = expected.nanousd, expected.prompt_nanousd
            here = meter.limit if share is None else share(meter.limit)
            if amount > here:
                amount = max(here, least)
            taken = take(meter, amount, moment)
            if isinstance(taken, Short):
                return over(taken, level.scope, amount, here=here, time_zone=level.limits.time_zone)
            held.append((taken, amount, meter, level))
        return None

    def _let_go(self, first: int, moment: Moment) -> None:
        for take, *_ in self._held[first:]:
            take.undo(moment)
        del self._held[first:]

    def __repr__(self) -> str:
        return f"<Reservation rank={self._rank} held={len(self._held)} {'ended' if self.has_ended else 'open'}>"
