"""A soak's samples as a picture: memory, files, requests in flight and tasks over time, rests as dots."""

from collections.abc import Iterator, Sequence

from tests.soak.gateway_report import Sample

_LEFT, _WIDTH, _HEIGHT, _GAP, _TOP = 56, 640, 90, 34, 24
_PANELS = (
    ("rss_mb", "resident memory, MB", "#c2410c"),
    ("files", "open files and sockets", "#1d4ed8"),
    ("in_flight", "requests in flight", "#15803d"),
    ("tasks", "asyncio tasks", "#7e22ce"),
)


def chart(samples: Sequence[Sample]) -> str:
    """SVG: a panel for each, under one another, with a common time in minutes."""
    height = _TOP + len(_PANELS) * (_HEIGHT + _GAP)
    size = f'width="{_LEFT + _WIDTH + 24}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, (name, title, colour) in enumerate(_PANELS):
        lines.extend(_panel(_TOP + number * (_HEIGHT + _GAP), samples, name, title, colour))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(top: int, samples: Sequence[Sample], name: str, title: str, colour: str) -> Iterator[str]:
    yield f'<text x="{_LEFT}" y="{top - 6}" font-weight="bold">{title}</text>'
    if not samples:
        return
    most = max(float(getattr(one, name)) for one in samples) * 1.1 or 1.0
    end = samples[-1].at_s or 1.0
    for part in range(3):
        y = top + _HEIGHT * (1 - part / 2)
        yield f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y}" y2="{y}" stroke="#e5e7eb"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{most * part / 2:.3g}</text>'
    points = [
        (round(_LEFT + _WIDTH * one.at_s / end, 1), round(top + _HEIGHT * (1 - getattr(one, name) / most), 1), one)
        for one in samples
    ]
    path = " ".join(f"{x},{y}" for x, y, _ in points)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="0.8"/>'
    for x, y, one in points:
        if one.is_rest:
            yield f'<circle cx="{x}" cy="{y}" r="2.5" fill="white" stroke="{colour}"/>'
    yield f'<text x="{_LEFT + _WIDTH}" y="{top + _HEIGHT + 14}" text-anchor="end">{end / 60:.0f} min</text>'
