"""`python -m tests.benchmarks.affinity_plot CELLS.json OUT.svg`: the cells of the affinity grid as a picture."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Cell = Mapping[str, Any]

_LEFT, _TOP, _STEP, _HEIGHT, _BOTTOM = 56, 44, 34, 260, 74
_MOST = 1.4  # the upper end of the axis; what is above is drawn there
_MUST_P95, _MUST_HITS = 1.02, 0.95
_SERIES = (
    ("p95_ratio", "TTFT p95 to the fastest baseline's (must: at most 1.02)", "#c2410c"),
    ("hit_of_fastest", "hit tokens to the same baseline's (must: at least 0.95)", "#1d4ed8"),
)


def chart(cells: Sequence[Cell]) -> str:
    """SVG: two marks for each cell, and lines at what must hold. Cells in their order."""
    width = _LEFT + _STEP * len(cells) + 16
    size = f'width="{width}" height="{_TOP + _HEIGHT + _BOTTOM}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        *_axis(width),
        *(line for place, cell in enumerate(cells) for line in _marks(place, cell)),
    ]
    for row, (_, told, colour) in enumerate(_SERIES):
        lines.append(f'<circle cx="{_LEFT + 6}" cy="{12 + 16 * row}" r="4" fill="{colour}"/>')
        lines.append(f'<text x="{_LEFT + 16}" y="{16 + 16 * row}">{told}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _y(ratio: float) -> float:
    return round(_TOP + _HEIGHT * (1 - min(ratio, _MOST) / _MOST), 1)


def _axis(width: int) -> Iterator[str]:
    for tenths in range(0, round(_MOST * 10) + 1, 2):
        y = _y(tenths / 10)
        yield f'<line x1="{_LEFT}" x2="{width - 8}" y1="{y}" y2="{y}" stroke="#e5e7eb"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{tenths / 10:.1f}</text>'
    for must, (_, _, colour) in zip((_MUST_P95, _MUST_HITS), _SERIES, strict=True):
        y = _y(must)
        yield f'<line x1="{_LEFT}" x2="{width - 8}" y1="{y}" y2="{y}" stroke="{colour}" stroke-dasharray="4 3"/>'
    for row, name in enumerate(("load", "KV share", "replicas")):
        yield f'<text x="{_LEFT - 6}" y="{_TOP + _HEIGHT + 18 + 18 * row}" text-anchor="end">{name}</text>'


def _marks(place: int, cell: Cell) -> Iterator[str]:
    x = _LEFT + _STEP * place + _STEP // 2
    for name, _, colour in _SERIES:
        yield f'<circle cx="{x}" cy="{_y(cell[name])}" r="4" fill="{colour}"/>'
    for row, name in enumerate(("load", "kv", "replicas")):
        told = f"{cell[name]:g}"
        yield f'<text x="{x}" y="{_TOP + _HEIGHT + 18 + 18 * row}" text-anchor="middle">{told}</text>'


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(chart(json.loads(Path(sys.argv[1]).read_text())))
