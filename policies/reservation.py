"""One admitted request's share of its tenant's limits, from its arrival to its settlement."""

from msgspec import Struct

from policies.meters import Counted, Meter, Meters, Moment, Short, Take
from policies.prices import Work, charged_tokens
from policies.quota_level import Level
from policies.quota_plan import Plan
from policies.quota_refusal import Rejected, over, unpriced
from policies.quota_standing import used_up
from policies.sole_bundle import BundleTake

_MONEY = Counted.MONTH_MONEY  # a member is found in a module faster than in its enum


class Expected(Struct, gc=False):
    """What a request is expected to cost, before it has run. `prompt_*`: of its prompt alone, which is known best.

    `nanousd`, `prompt_nanousd`: None for a model without a price. `is_bound`: the client itself allows that much output
    and no more; else it is a guess.
    """

    tokens: int
    prompt_tokens: int
    nanousd: int | None = None
    prompt_nanousd: int | None = None
    is_bound: bool = False

    def of_prompt(self) -> "Expected":
        """The least that the request costs: with no output."""
        return Expected(self.prompt_tokens, self.prompt_tokens, self.prompt_nanousd, self.prompt_nanousd)


class Counting:
    """What all reservations of a process share: who counts, and how many are open."""

    __slots__ = ("meters", "num_reservations")

    def __init__(self, meters: Meters) -> None:
        self.meters = meters
        self.num_reservations = 0


Held = tuple[Take, int, Meter, Level]  # what was taken, how much, of which meter; one for each limit of a request


class Reservation(Struct, eq=False, gc=False):  # no ring can lead through it
    """Ends exactly once, by `settle` or `undo`; a second end changes nothing.

    `settle` when the request was worked on: it stays counted in its minute, and tokens and money by what it cost.
    `undo` when a later step refused it: every counter is as if it had never come. `shadowed`: the first limit in
    shadow mode that would have refused it, and does not count it. `has_budgets`: whether tokens or money are limited.

    Made by `Quotas`; the other fields are its own. Where every limit has room all are counted in one step: `counted_at`
    (its second) and `taken`. Else level by level and meter by meter, which finds what refuses: `requests`, `held`.
    """

    counting: Counting
    plan: Plan
    rank: int
    counted_at: int | None = None
    levels: tuple[Level, ...] = ()
    has_budgets: bool = False
    shadowed: Rejected | None = None
    has_ended: bool = False
    taken: BundleTake | None = None
    held: list[Held] | None = None
    requests: list[Take] | None = None

    def enter(self, level: Level, request: Take | None) -> None:
        """Count the request in flight at a level. `request`: its place in the minute there."""
        level.in_flight[self.rank] += 1
        self.levels += (level,)
        if level.has_budgets:
            self.has_budgets = True
        if request is not None:
            self.requests = [*(self.requests or ()), request]

    def shadow(self, rejected: Rejected) -> None:
        """A limit in shadow mode would have refused the request, as far as it is known."""
        if self.shadowed is None and rejected.pending is None:
            self.shadowed = rejected

    def used_up(self, moment: Moment) -> Rejected | None:
        """The limit of tokens or money that has nothing left, so that no request can pass, whatever it asks for."""
        if not self.has_budgets or self.plan.has_room(moment):
            return None
        return used_up(self.levels, self.counting.meters, moment)

    def hold(self, expected: Expected, moment: Moment) -> Rejected | None:
        """Take tokens and money of every level, or of none: the limit that refuses, if one does.

        A guess refuses nothing: of an output that is only guessed as much is held as there is room for beside the
        prompt. No output makes a request impossible: it is held no longer than the limit is large.
        """
        plan, nanousd = self.plan, expected.nanousd
        if self.counted_at is not None and (nanousd is not None or not plan.has_money):
            bundle = plan.budgets(moment.unix)
            if bundle is not None:
                self.taken = bundle.take((nanousd or 0, expected.tokens, expected.tokens), moment)
                if self.taken is not None:
                    return None
        return self._hold_each(expected, moment)

    def let_go(self, moment: Moment) -> None:
        """Give back tokens and money, as if they had not been asked for yet; the request stays in flight."""
        taken, self.taken = self.taken, None
        if taken is not None:
            taken.undo(moment)
        held, self.held = self.held, None
        if held:
            self._let_go(held, moment)

    def charge(self, work: Work, nanousd: int | None, moment: Moment) -> int:
        """The real cost is known: count it instead of what was held, once; later calls change nothing.

        `nanousd`: of the whole work; None where the model has no price. Returns the tokens that it counts for in the
        project.
        """
        taken, self.taken = self.taken, None
        if taken is not None:
            amounts = self.plan.amounts(nanousd or 0, work)
            taken.correct(amounts, moment)
            return amounts[-1]
        if self.held:
            held, self.held = self.held, None
            for take, _, meter, level in held:
                is_money = meter.counted is _MONEY
                take.correct((nanousd or 0) if is_money else charged_tokens(work, level.cached_weight), moment)
        return charged_tokens(work, self.plan.project.cached_weight)

    def settle(self, moment: Moment) -> None:
        """Give back the seat in flight. What was held and not charged stays counted as it was expected."""
        if not self._leave():
            return
        if self.taken is not None:
            taken, self.taken = self.taken, None
            taken.correct(taken.amounts, moment)
        if self.held:
            for take, amount, _, _ in self.held:
                take.correct(amount, moment)
            self.held = None
        if self.requests:
            for request in self.requests:
                request.correct(1, moment)

    def undo(self, moment: Moment) -> None:
        """Give back everything, the place in the minute too."""
        if not self._leave():
            return
        self.let_go(moment)
        if self.counted_at is not None:
            self.plan.leave_minute(self.counted_at)
        if self.requests:
            for request in self.requests:
                request.undo(moment)

    def _leave(self) -> bool:
        """Whether this is the first end."""
        if self.has_ended:
            return False
        self.has_ended = True
        rank = self.rank
        for level in self.levels:
            level.in_flight[rank] -= 1
        self.counting.num_reservations -= 1
        return True

    def _hold_each(self, expected: Expected, moment: Moment) -> Rejected | None:
        held: list[Held] = []
        for level in self.levels:
            if not level.has_budgets:
                continue
            here: list[Held] = []
            rejected = self._hold_level(level, expected, moment, here)
            if rejected is None:
                held += here
                continue
            self._let_go(here, moment)
            if not level.is_shadow:
                self._let_go(held, moment)
                return rejected
            self.shadow(rejected)
        self.held = held
        return None

    def _hold_level(self, level: Level, expected: Expected, moment: Moment, held: list[Held]) -> Rejected | None:
        for meter in level.budgets(moment.unix):
            amount, least = expected.tokens, expected.prompt_tokens
            if meter.counted is _MONEY:
                if expected.nanousd is None or expected.prompt_nanousd is None:
                    return unpriced(level.scope, meter.limit, self.counting.meters.remaining(meter, moment)[0])
                amount, least = expected.nanousd, expected.prompt_nanousd
            amount = min(amount, max(meter.limit, least))
            taken, amount = self._take_of(meter, amount, amount if expected.is_bound else least, moment)
            if isinstance(taken, Short):
                return over(taken, level.scope, amount, time_zone=level.limits.time_zone)
            held.append((taken, amount, meter, level))
        return None

    def _take_of(self, meter: Meter, amount: int, least: int, moment: Moment) -> tuple[Take | Short, int]:
        """Take the amount, or all that is left as long as it is no less than `least`; with how much was asked at last.

        What is left may be held by others for a moment, so the least is tried by itself too.
        """
        taken = self.counting.meters.take(meter, amount, moment)
        if isinstance(taken, Short) and not taken.is_pending and least < taken.remaining < amount:
            amount = taken.remaining
            taken = self.counting.meters.take(meter, amount, moment)
        if isinstance(taken, Short) and not taken.is_pending and least < amount:
            amount = least
            taken = self.counting.meters.take(meter, amount, moment)
        return taken, amount

    @staticmethod
    def _let_go(held: list[Held], moment: Moment) -> None:
        for take, *_ in held:
            take.undo(moment)

    def __repr__(self) -> str:
        num_held = len(self.held or ()) if self.taken is None else len(self.taken.bundle)
        return f"<Reservation rank={self.rank} held={num_held} {'ended' if self.has_ended else 'open'}>"
