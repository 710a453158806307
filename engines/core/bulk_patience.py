"""For how long bulk has been left out of steps, and how often. Pure."""

from engines.core.outlook import StepOutlook


class BulkPatience:
    """Of one scheduler. Counts only grow."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._out_since: float | None = None  # since when no step had bulk in it, though there was some
        self.num_left_out = 0
        self.num_lifts = 0

    def __repr__(self) -> str:
        return f"<BulkPatience out_since={self._out_since} left_out={self.num_left_out} lifts={self.num_lifts}>"

    def is_overdue(self, now: float) -> bool:
        """Whether the next step shall have some bulk in it in spite of the objective."""
        return self._out_since is not None and now - self._out_since >= self._patience_s

    def note(self, outlook: StepOutlook, now: float, *, is_in_step: bool, is_there: bool) -> None:
        """What became of bulk in a step: whether some was in it, and whether there was any, seated or waiting."""
        self.num_left_out += outlook.bulk_left_out
        self.num_lifts += outlook.is_lifted
        if is_in_step or not is_there:
            self._out_since = None
        elif self._out_since is None:
            self._out_since = now
