"""What `isolation_wall` found, for people: a table in Markdown, a picture of the p95s, and both into docs/isolation.md."""

import importlib
import importlib.util
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.models import REPOSITORY

DOCS, PICTURE = REPOSITORY / "docs" / "isolation.md", REPOSITORY / "docs" / "images" / "isolation.png"
_BEGIN, _END = "<!-- isolation_wall: begin -->", "<!-- isolation_wall: end -->"

Row = Mapping[str, object]

_COLUMNS = (
    "system",
    "bulk",
    "TTFT p50",
    "p95 ms",
    "ITL p50",
    "p95 ms",
    "rows a step",
    "seats",
    "people tok/s",
    "bulk tok/s",
)
_KINDS = tuple((kind, q) for kind in ("ttft", "itl") for q in ("p50", "p95"))


def rows_of(result: Row) -> Iterator[tuple[str, ...]]:
    """Three lines a system: without bulk, beside it, and the ratios."""
    for one in result["systems"]:
        for name in ("alone", "beside"):
            found = one[name]
            late, batch = f" ({found['unanswered']} unanswered)" * bool(found["unanswered"]), found["batch"]
            seats = " + ".join(f"{held:.1f}" for lane, held in batch["seats"].items() if lane != "standard")
            times = [f"{found[f'{kind}_ms'].get(q, 0):.0f}" for kind, q in _KINDS]
            bulk = f"{found['bulk']['tokens_per_s']:.0f} of {one['capacity']['bulk_tokens_per_s']:.0f}"
            load = (f"{batch['rows']:.2f}", seats, f"{found['tokens_per_s']:.1f}", bulk if name == "beside" else "")
            yield (one["name"] + late, "beside" if name == "beside" else "none", *times, *load)
        ratios = [f"**{one['ratios'].get(f'{kind}_{q}', 0):.2f}**" for kind, q in _KINDS]
        yield (one["name"], "ratio", *ratios, "", "", "", "")


def markdown_of(result: Row) -> str:
    """The lines as a table, with what was run and on what."""
    plan, systems = result["plan"], result["systems"]
    windows = ", ".join(f"{one['name']} {one['beside']['requests']} in {one['seconds']:.0f} s" for one in systems)
    told = (
        f"{result['at']}; {result['machine']}, load average {result['load_average']:.1f} before; {result['model']}, "
        f"{plan['setup']['threads']} threads, {plan['setup']['seats']} seats, seed {plan['seed']}. "
        f"People's requests in a window: {windows}"
    )
    lines = [_COLUMNS, ["---"] * 2 + ["---:"] * (len(_COLUMNS) - 2), *rows_of(result)]
    return f"{told}.\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_docs(result: Row, page: Path = DOCS) -> None:
    """Put the table between the page's markers, with the picture if there is one. Raises ValueError without markers."""
    before, begin, rest = page.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{page} has no {_BEGIN} and {_END}")
    picture = page.parent / "images" / PICTURE.name
    shown = f"\n\n![p95 of TTFT and ITL without and beside bulk](images/{picture.name})" if picture.exists() else ""
    page.write_text(f"{before}{begin}\n{markdown_of(result)}{shown}\n{end}{after}")


def can_draw() -> bool:
    """Whether matplotlib is there: it is no dependency of ours."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(result: Row, path: Path) -> None:
    """A picture of the p95s without and with bulk. Needs `can_draw`."""
    figure_of = importlib.import_module("matplotlib.figure").Figure
    figure = figure_of(figsize=(9, 3.6), layout="constrained")
    for axes, kind in zip(figure.subplots(1, 2), ("ttft", "itl"), strict=True):
        for offset, name, colour in ((-0.2, "alone", "#8fb8de"), (0.2, "beside", "#1f4e79")):
            heights = [one[name][f"{kind}_ms"].get("p95", 0) for one in result["systems"]]
            bars = axes.bar([place + offset for place in range(len(heights))], heights, 0.4, label=name, color=colour)
            ratios = [f"{one['ratios'].get(f'{kind}_p95', 0):.2f}x" for one in result["systems"]]
            axes.bar_label(bars, ratios if name == "beside" else [""] * len(heights))
        axes.set_xticks(range(len(heights)), [str(one["name"]).replace(", ", ",\n") for one in result["systems"]])
        axes.set(title=f"{kind.upper()} p95, ms (log)", yscale="log")
        axes.margins(y=0.15)
        shown = [bar.get_height() for bars in axes.containers for bar in bars if bar.get_height() > 0]
        axes.set_ylim(bottom=10 ** math.floor(math.log10(min(shown, default=1.0))))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
    figure.legend(axes.containers, ["no bulk", "beside bulk at 300%"], loc="outside lower center", ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
