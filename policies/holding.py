"""One resource as a gateway holds it: what it may use, what it uses, and how much it had use for lately."""


class Holding:
    """`allowed` counts until `valid_until`; in use may be above it after it was lowered.

    `is_lacking`: somebody was refused since the last report. `fresh_until`: more was granted and none of it taken yet.
    `is_called`: others lack what all is in use here. `dry_until`: others have none to give. `unused`: units that nobody
    uses, as the store was last told by everyone.
    """

    __slots__ = (
        "allowed",
        "dry_until",
        "fresh_until",
        "in_use",
        "is_called",
        "is_lacking",
        "last_peak",
        "limit",
        "peak",
        "peak_since",
        "unused",
        "valid_until",
    )

    def __init__(self, now: float) -> None:
        self.allowed = 0
        self.in_use = 0
        self.limit = 0
        self.unused = 0
        self.valid_until = now
        self.peak = 0  # most wanted since `peak_since`; `last_peak`: in the window before
        self.last_peak = 0
        self.peak_since = now
        self.is_lacking = self.is_called = False
        self.fresh_until = self.dry_until = float("-inf")

    def note(self, wanted: int, now: float, window_s: float) -> None:
        """Take in a demand, and let the demand of two windows ago be forgotten."""
        age_s = now - self.peak_since
        if age_s >= window_s:
            self.last_peak = self.peak if age_s < 2 * window_s else 0
            self.peak = 0
            self.peak_since = now
        self.peak = max(self.peak, wanted)

    def give_up(self, now: float) -> None:
        """Another gateway would use what is not used here: want no more than what is in use, now or when some is."""
        self.is_called = self.in_use >= self.allowed or now < self.fresh_until
        if not self.is_called:
            self.allowed = self.peak = self.in_use
            self.last_peak = 0
            self.peak_since = now

    @property
    def wanted(self) -> int:
        """Units it had use for in the last window or two, those in use included."""
        return max(self.in_use, min(self.limit, max(self.peak, self.last_peak)))
