"""How a replica's last attempts ended, in the last minute or so. Counting costs an addition; time moves it on.

Two stretches of `STRETCH_S` are kept, the running one and the one before, so that what is known is never less than one
stretch and never older than three.
"""

STRETCH_S = 30.0  # chosen: an engine that answers in ten seconds ends some attempts in it
FREE_RETRIES = 10  # chosen: in the time that is counted, so that a quiet replica's failures are retried too


class Tally:
    """`fine`, `faults`, `late`, `retried`: in the running stretch. Back-pressure and clients' errors are in none.

    `late`: of the fine ones, those whose first content came far later than predicted. `retried`: failures here that
    were tried elsewhere. `until`: when the stretch ends, monotonic seconds; 0 while nothing was ever counted.
    """

    __slots__ = ("before", "faults", "fine", "late", "retried", "until")

    def __init__(self) -> None:
        self.fine = self.faults = self.late = self.retried = 0
        self.before = (0, 0, 0, 0)
        self.until = 0.0

    def __repr__(self) -> str:
        return f"<Tally {self.num_faults} faults and {self.num_late} late of {self.num_attempts}>"

    def move_on(self, now: float) -> None:
        """Begin another stretch if this one is over. To be called before anything is counted or read."""
        if now < self.until:
            return
        is_recent = now < self.until + STRETCH_S
        self.before = (self.fine, self.faults, self.late, self.retried) if is_recent else (0, 0, 0, 0)
        self.fine = self.faults = self.late = self.retried = 0
        self.until = now + STRETCH_S

    @property
    def is_blank(self) -> bool:
        """Whether it never counted anything."""
        return not self.until

    @property
    def num_attempts(self) -> int:
        """Attempts that ended fine or in a fault."""
        return self.fine + self.faults + self.before[0] + self.before[1]

    @property
    def num_faults(self) -> int:
        """Attempts that the engine failed."""
        return self.faults + self.before[1]

    @property
    def num_late(self) -> int:
        """Answers that began far later than predicted."""
        return self.late + self.before[2]

    @property
    def num_retried(self) -> int:
        """Retries that its failures caused."""
        return self.retried + self.before[3]

    def spend_retry(self, ratio: float, now: float) -> bool:
        """Whether a failure here may be tried elsewhere; it is counted then.

        At most `ratio` of its attempts and `FREE_RETRIES`: one broken replica shall not use up what all may retry.
        """
        self.move_on(now)
        if self.num_retried >= FREE_RETRIES + ratio * self.num_attempts:
            return False
        self.retried += 1
        return True
