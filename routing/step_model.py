"""What a step of one replica costs, learned from outside: from the gaps of streams, and from times to first token.

A gateway sees no steps. But a stream's mean gap is the mean step while it decoded, and how many rows were there
meanwhile is known, because the gateway gave them their seats: one observation a request, at its end. Of an engine that
gets requests from elsewhere too this sees a part of the rows only, and takes the rest for the fixed cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engines.step_cost import StepCost, StepCostFitter

# Before anything was seen: an eighth of the fixed cost for a row, which lets one bulk row stand beside people; chosen.
PRIOR = StepCost(base_s=0.02, per_row_s=0.0025, per_prefill_token_s=0.0005)
LEARN_EVERY_S = 0.2  # chosen: learning takes 30 µs; a busy replica's requests are more alike than that is worth
LEAST_GAPS = 4  # of a shorter answer the mean gap says little
LEAST_READING_TOKENS = 256  # of a shorter prompt the time to first token is mostly the way there and back
_CHUNK_TOKENS = 512  # of a prompt read in one step, about
_MEMORY = 0.99  # about 100 observations
ROW_PRICE = 4.0  # prompt tokens a row costs as much as, before it is learned: 3 on two cores, 6 on a GPU were measured
LEAST_ROW_PRICE, MOST_ROW_PRICE = 1.0, 16.0
_DOUBT = 8  # observations until the learned price counts as much as the first guess; chosen


class RowMark(NamedTuple):
    """The sums of a replica at a moment: seconds, row-seconds of urgent and of bulk requests, prompt tokens given."""

    at: float
    urgent_row_s: float
    bulk_row_s: float
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Gaps:
    """The gaps between the tokens of one streamed answer: how many, their mean, and some of them, in seconds."""

    num: int
    mean_s: float
    sample: tuple[float, ...]

    @classmethod
    def between(
        cls, first_at: float | None, last_at: float | None, num_tokens: int, sample: Sequence[float]
    ) -> "Gaps | None":
        """The gaps of an answer of `num_tokens` that came one by one, or None if there are too few.

        `sample`: every nth gap, for any n, so that their distribution is that of all.
        """
        if first_at is None or last_at is None or num_tokens <= LEAST_GAPS or last_at <= first_at:
            return None
        return cls(num_tokens - 1, (last_at - first_at) / (num_tokens - 1), tuple(sample))


class MeanRows(NamedTuple):
    """Requests on the replica while one decoded, on average; itself included."""

    urgent: float
    bulk: float


class StepModel:
    """`cost`: the best estimate now. For `ReplicaPool` and `SeatControl` alone to tell."""

    __slots__ = (
        "_at", "_bulk", "_bulk_row_s", "_fitter", "_gaps_at", "_prompt_tokens", "_ttft_at", "_urgent", "_urgent_row_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self._fitter = StepCostFitter(PRIOR, forgetting=_MEMORY)
        self._at = 0.0
        self._urgent = self._bulk = self._prompt_tokens = 0
        self._urgent_row_s = self._bulk_row_s = 0.0
        self._gaps_at = self._ttft_at = float("-inf")

    def __repr__(self) -> str:
        cost = self.cost
        return (
            f"<StepModel {cost.base_s * 1e3:.2f} ms + {cost.per_row_s * 1e3:.3f} ms a row + "
            f"{cost.per_prefill_token_s * 1e6:.1f} µs a prompt token, {self._fitter.num_observations} seen>"
        )

    @property
    def cost(self) -> StepCost:
        """Seconds of a step by its rows and prefill tokens."""
        return self._fitter.cost

    @property
    def num_observations(self) -> int:
        """What was learned from so far."""
        return self._fitter.num_observations

    def row_tokens(self, ms_per_token: float) -> float:
        """What a decoding row adds to a step, as so many prompt tokens that take `ms_per_token` each.

        Never out of bounds, and near the first guess until some steps were seen: rows that never vary tell nothing.
        """
        num = self._fitter.num_observations
        learned = min(max(self.cost.per_row_s * 1000.0 / ms_per_token, LEAST_ROW_PRICE), MOST_ROW_PRICE)
        return ROW_PRICE * float((learned / ROW_PRICE) ** (num / (num + _DOUBT)))

    def reading_s(self, num_tokens: int, rows: int) -> float:
        """Seconds until so many prompt tokens are read beside `rows` that decode."""
        num_steps = max(1.0, num_tokens / _CHUNK_TOKENS)
        return num_steps * self.cost.seconds(rows, num_tokens / num_steps)

    def note_rows(self, urgent: int, bulk: int, now: float) -> None:
        """From now on the replica holds so many requests. A clock that went back adds nothing."""
        passed_s = now - self._at
        if passed_s > 0.0:
            self._urgent_row_s += self._urgent * passed_s
            self._bulk_row_s += self._bulk * passed_s
            self._at = now
        self._urgent, self._bulk = urgent, bulk

    def note_prompt(self, uncached_tokens: int) -> None:
        """A prompt was given to the replica."""
        self._prompt_tokens += uncached_tokens

    def mark(self) -> RowMark:
        """The sums as of the last `note_rows`."""
        return RowMark(self._at, self._urgent_row_s, self._bulk_row_s, self._prompt_tokens)

    def learn_gaps(self, since: RowMark, gaps: Gaps, now: float) -> MeanRows | None:
        """Take in the gaps of a request that decodes since `since`; who was there meanwhile, or None if unknown."""
        rows = self._rows(since)
        if rows is not None:
            self._learn_steps(rows, since, gaps.num, gaps.mean_s, now)
        return rows

    def learn_whole(self, since: RowMark, prompt_tokens: int, answer_tokens: int, now: float) -> None:
        """Take in an unstreamed answer, given to the replica at `since`: the steps of its prompt and of its answer."""
        rows = self._rows(since)
        if rows is not None and answer_tokens > LEAST_GAPS:
            num_steps = answer_tokens - 1 + max(1, -(-prompt_tokens // _CHUNK_TOKENS))
            self._learn_steps(rows, since, num_steps, (self._at - since.at) / num_steps, now)

    def _rows(self, since: RowMark) -> MeanRows | None:
        passed_s = self._at - since.at
        if passed_s <= 0:
            return None
        return MeanRows(
            (self._urgent_row_s - since.urgent_row_s) / passed_s, (self._bulk_row_s - since.bulk_row_s) / passed_s
        )

    def _learn_steps(self, rows: MeanRows, since: RowMark, num: int, mean_s: float, now: float) -> None:
        if now - self._gaps_at >= LEARN_EVERY_S:
            self._gaps_at = now
            prompt_tokens = (self._prompt_tokens - since.prompt_tokens) / num
            self._fitter.observe(rows.urgent + rows.bulk, prompt_tokens, mean_s)

    def learn_ttft(self, num_tokens: int, rows: int, ttft_s: float, now: float) -> None:
        """Take in a time to first token with `num_tokens` to read, none ahead, and `rows` decoding beside.

        It is taken for so many equal steps as chunks were needed.
        """
        if num_tokens < LEAST_READING_TOKENS or now - self._ttft_at < LEARN_EVERY_S:
            return
        self._ttft_at = now
        num_steps = -(-num_tokens // _CHUNK_TOKENS)
        self._fitter.observe(rows, num_tokens / num_steps, ttft_s / num_steps)
