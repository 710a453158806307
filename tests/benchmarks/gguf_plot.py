"""`python -m tests.benchmarks.gguf_plot RESULT.json OUT.svg`: the gguf worker beside llama-server as a picture.

Reads what `python -m tests.benchmarks.gguf_worker` wrote: bars are medians, dots the rounds.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.gguf_worker import OURS, THEIRS

Round = Mapping[str, Any]

_LEFT, _TOP, _HEIGHT, _BOTTOM, _BAR, _GROUP, _PANEL_GAP = 48, 48, 220, 52, 24, 84, 56
_COLOURS = {OURS: "#c2410c", THEIRS: "#1d4ed8"}
_PANELS: tuple[tuple[str, Callable[[Round], float]], ...] = (
    ("output tokens a second (more is better)", lambda one: float(one["tokens_per_s"])),
    ("TTFT p95, s (less is better)", lambda one: float(one["ttft_ms"]["p95"]) / 1e3),
)


def chart(rounds: Sequence[Round]) -> str:
    """SVG: two panels with a group of two bars for each case, in the order in which they came."""
    cases = list(dict.fromkeys((one["case"], one["clients"]) for one in rounds))
    panel = _GROUP * len(cases)
    width = _LEFT + len(_PANELS) * panel + (len(_PANELS) - 1) * _PANEL_GAP + 16
    size = f'width="{width}" height="{_TOP + _HEIGHT + _BOTTOM}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for place, (system, colour) in enumerate(_COLOURS.items()):
        lines.append(f'<rect x="{_LEFT + 130 * place}" y="8" width="10" height="10" fill="{colour}"/>')
        lines.append(f'<text x="{_LEFT + 130 * place + 16}" y="17">{system}</text>')
    for number, (title, value) in enumerate(_PANELS):
        left = _LEFT + number * (panel + _PANEL_GAP)
        lines.append(f'<text x="{left}" y="{_TOP - 10}" font-weight="bold">{title}</text>')
        lines.extend(_panel(left, cases, rounds, value))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(
    left: int, cases: Sequence[tuple[str, int]], rounds: Sequence[Round], value: Callable[[Round], float]
) -> Iterator[str]:
    most = max(map(value, rounds)) * 1.05
    right = left + _GROUP * len(cases)
    for part in range(5):
        y = _y(most * part / 4, most)
        yield f'<line x1="{left}" x2="{right}" y1="{y}" y2="{y}" stroke="#e5e7eb"/>'
        yield f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{most * part / 4:.3g}</text>'
    for place, (case, clients) in enumerate(cases):
        x = left + _GROUP * place + (_GROUP - 2 * _BAR) // 2
        for side, system in enumerate(_COLOURS):
            of_it = [
                value(one) for one in rounds if (one["case"], one["clients"], one["system"]) == (case, clients, system)
            ]
            yield from _bar(x + side * _BAR, system, of_it, most)
        middle = left + _GROUP * place + _GROUP // 2
        yield f'<text x="{middle}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{case}</text>'
        yield f'<text x="{middle}" y="{_TOP + _HEIGHT + 34}" text-anchor="middle">{clients} at once</text>'


def _bar(x: int, system: str, values: Sequence[float], most: float) -> Iterator[str]:
    y = _y(median(values), most)
    colour = _COLOURS[system]
    height = round(_TOP + _HEIGHT - y, 1)
    yield f'<rect x="{x}" y="{y}" width="{_BAR - 2}" height="{height}" fill="{colour}" opacity="0.8"/>'
    for one in values:
        yield f'<circle cx="{x + _BAR // 2 - 1}" cy="{_y(one, most)}" r="2.5" fill="white" stroke="{colour}"/>'


def _y(value: float, most: float) -> float:
    return round(_TOP + _HEIGHT * (1 - value / most), 1)


def main() -> int:
    """Writes the picture; 2 with a sentence when called wrongly."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    Path(sys.argv[2]).write_text(chart(json.loads(Path(sys.argv[1]).read_text())["rounds"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
