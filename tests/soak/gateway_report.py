"""What a gateway soak saw, and whether each thing that must hold did."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.soak.gateway_checks import growth

MUST_HOLD = (
    "run to its end",
    "nothing in flight at rest",
    "no seat at rest",
    "no client socket at rest",
    "engines at rest",
    "one outcome a request",
    "one ledger row a request",
    "sums equal",
    "receipts bounded",
    "no error in the log",
    "memory within its bound",
    "files flat",
    "tasks flat",
)
_WARM_UP_SHARE, _WARM_UP_S = 0.25, 300.0  # whichever is shorter
# growth behind the warm-up, of the line through the rests; chosen. 10,000 receipts of 2 kB may still be filling up.
_MAX_RSS_MB, _MAX_FILES, _MAX_TASKS = 24.0, 10.0, 5.0
_FEWEST = 4  # rests, before a slope means something
_SHOWN = 3


@dataclass
class Sample:
    """One moment of the run. `rss_mb` and `files`: of supervisor and gateway together; `sockets`: of clients."""

    at_s: float
    is_rest: bool
    rss_mb: float
    files: int
    sockets: int
    in_flight: int
    tasks: int


@dataclass
class Report:
    """`violations`: by what must hold."""

    seed: int
    minutes: float
    requests: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    violations: dict[str, list[str]] = field(default_factory=dict)

    def add(self, what: str, sentences: list[str]) -> None:
        """These were violations of `what`."""
        assert what in MUST_HOLD, what
        if sentences:
            self.violations.setdefault(what, []).extend(sentences)

    @property
    def holds(self) -> bool:
        """Whether nothing was violated."""
        return not self.violations

    def judge(self) -> None:
        """What is to be seen only over the whole time."""
        self.add("memory within its bound", self._grown("rss_mb", _MAX_RSS_MB))
        self.add("files flat", self._grown("files", _MAX_FILES))
        self.add("tasks flat", self._grown("tasks", _MAX_TASKS))
        if not any(sample.is_rest for sample in self.samples):
            self.add("run to its end", ["nothing was ever looked at"])

    def rests(self, name: str) -> list[tuple[float, float]]:
        """(seconds, value) at the rests behind the warm-up."""
        warm_s = min(_WARM_UP_SHARE * self.minutes * 60, _WARM_UP_S)
        return [(one.at_s, float(getattr(one, name))) for one in self.samples if one.is_rest and one.at_s >= warm_s]

    def _grown(self, name: str, most: float) -> list[str]:
        rests = self.rests(name)
        if len(rests) < _FEWEST or (grown := growth(rests)) <= most:
            return []
        return [f"{name} grew by {grown:.1f} in {len(rests)} rests, from {rests[0][1]:g} to {rests[-1][1]:g}"]

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {**vars(self), "samples": [vars(sample) for sample in self.samples]}

    def table(self) -> str:
        """What was done, then a line for each thing that must hold."""
        rests = [sample for sample in self.samples if sample.is_rest]
        lines = [
            f"soak {self.minutes:g} min, seed {self.seed}: {self.requests.total()} requests, {len(rests)} rests",
            f"outcomes: {dict(self.outcomes.most_common())}",
            f"faults: {dict(self.faults.most_common())}",
            f"rows: {self.rows}, tokens: {self.tokens}",
        ]
        for name in ("rss_mb", "files", "tasks"):
            values = [value for _, value in self.rests(name)]
            lines.append(
                f"{name} at rest: "
                + (f"{min(values):g} to {max(values):g}, line {growth(self.rests(name)):+.1f}" if values else "-")
            )
        for what in MUST_HOLD:
            found = self.violations.get(what, [])
            lines.append(f"{'FAILED' if found else 'held':>6}  {what}" + (f" ({len(found)} times)" if found else ""))
            lines += [f"          {sentence[:400]}" for sentence in found[:_SHOWN]]
        return "\n".join(lines)
