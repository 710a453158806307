"""Which messages of one gateway count: each once, however often and in whatever order they come. Pure."""

WINDOW = 64  # messages; one that is later still is not taken in


class MessageOrder:
    """Of one gateway. `num_lost`: messages that never came, told once nobody waits for them any more."""

    __slots__ = ("_last", "_seen", "num_late", "num_lost")

    def __init__(self) -> None:
        self._last = 0
        self._seen = 0  # bit n: `_last` - n was seen
        self.num_late = 0
        self.num_lost = 0

    def __repr__(self) -> str:
        return f"<MessageOrder up to {self._last}, {self.num_lost} lost, {self.num_late} late>"

    def take(self, seq: int) -> tuple[bool, bool]:
        """(whether the message counts, whether it is newer than all before). What it says absolutely must be newer."""
        if not self._last:  # the first that is heard: what came before it is of no concern
            self._last, self._seen = seq, (1 << WINDOW) - 1
            return True, True
        ahead = seq - self._last
        if ahead > 0:
            self._pass(ahead)
            self._last = seq
            return True, True
        bit = 1 << -ahead
        if -ahead >= WINDOW or self._seen & bit:
            self.num_late += 1
            return False, False
        self._seen |= bit
        return True, False

    def _pass(self, ahead: int) -> None:
        """Move the window; what leaves it unseen is lost."""
        num_gone = min(ahead, WINDOW)
        gone = self._seen >> (WINDOW - num_gone)
        self.num_lost += num_gone - gone.bit_count() + max(0, ahead - WINDOW)
        self._seen = ((self._seen << ahead) | 1) & ((1 << WINDOW) - 1) if ahead < WINDOW else 1
