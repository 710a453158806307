"""What is usual for a model over all its replicas, and what reading a prompt token there costs everybody else."""

from collections.abc import Sequence

from routing.replica import ROW_TOKENS
from routing.scorers import Row

_SHARE = 0.02  # of one observation: about the last 50 requests count; chosen
WAITING = 1.25  # those who wait now count so much: with 1 a busy fleet of little KV gave up 1% more hits; measured


class Usual:
    """`reading_tokens`: of a prompt, that had to be read. `ms_per_token`: as learned of those that read them.

    Both 0 before the first observation. No prompt counts as less than a request weighs anyway.
    """

    __slots__ = ("ms_per_token", "reading_tokens")

    def __init__(self) -> None:
        self.reading_tokens = 0.0
        self.ms_per_token = 0.0

    def __repr__(self) -> str:
        return f"<Usual {self.reading_tokens:.0f} tokens to read, {self.ms_per_token:.3f} ms each>"

    def observe(self, reading_tokens: int, ms_per_token: float) -> None:
        """A request was answered that had so many tokens to be read, by a replica that takes so long for each."""
        tokens = max(ROW_TOKENS, reading_tokens)
        if not self.ms_per_token:
            self.reading_tokens, self.ms_per_token = float(tokens), ms_per_token
            return
        self.reading_tokens += _SHARE * (tokens - self.reading_tokens)
        self.ms_per_token += _SHARE * (ms_per_token - self.ms_per_token)

    def others_ms(self, rows: Sequence[Row]) -> float:
        """What each prompt token that is read delays others by, all of them together, in milliseconds.

        It takes the pool's time wherever it is read, so it is priced at the usual rate, not at the replica's own: else
        every prompt would queue for the fastest. It delays whoever comes before the work is done. These are as many as
        wait at a replica now (in a steady state, by Little's law), and one more, so that an idle fleet keeps hits too.
        """
        if not self.ms_per_token:
            return rows[0][8]
        unread_tokens = sum([row[6] for row in rows]) / len(rows)
        return (1.0 + WAITING * unread_tokens / self.reading_tokens) * self.ms_per_token
