"""What `SoleMeters` keeps of one meter: its last minute, or one calendar window."""

from policies.meters import Moment
from policies.minute_window import MinuteWindow


class MinuteCount(MinuteWindow):
    """The last minute of one meter. `num_takes`: not ended."""

    __slots__ = ("num_takes",)

    def __init__(self) -> None:
        super().__init__()
        self.num_takes = 0

    def reset_s(self, moment: Moment) -> float:
        """Seconds until nothing is counted if nothing comes."""
        return self.empty_in_s(moment.now)


class PeriodCount:
    """A calendar window of one meter. `touched_at`: monotonic. `num_takes`: not ended."""

    __slots__ = ("ends_at", "num_takes", "touched_at", "used")

    def __init__(self, ends_at: int) -> None:
        self.ends_at = ends_at
        self.used = 0
        self.touched_at = 0.0
        self.num_takes = 0

    def reset_s(self, moment: Moment) -> float:
        """Seconds until nothing is counted if nothing comes."""
        return self.ends_at - moment.unix if self.used else 0.0
