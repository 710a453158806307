"""The picture of the worker beside llama-server is well-formed, and bars are as high as what was measured."""

from itertools import product
from xml.etree import ElementTree as ET

from tests.benchmarks.gguf_plot import chart
from tests.benchmarks.gguf_worker import OURS, THEIRS


def rounds(ours, theirs):
    """Three rounds of two cases; the middle one of each system counts."""
    speeds = {OURS: ours, THEIRS: theirs}
    return [
        {"system": system, "case": case, "clients": 4, "tokens_per_s": speed, "ttft_ms": {"p95": 1e3 * speed}}
        for case, system in product(("distinct", "shared prefix"), speeds)
        for speed in speeds[system]
    ]


def test_bars_are_medians_and_every_round_is_a_dot():
    """The one with half the median has a bar half as high, in both panels."""
    root = ET.fromstring(chart(rounds((90.0, 100.0, 10.0), (50.0, 45.0, 40.0))))
    bars = [float(bar.get("height")) for bar in root if bar.get("opacity")]
    assert len(bars) == 8
    assert all(abs(ours - 2 * theirs) < 0.3 for ours, theirs in zip(bars[::2], bars[1::2], strict=True))
    assert len([dot for dot in root if dot.tag.endswith("circle")]) == 24
    assert {"distinct", "shared prefix", OURS, THEIRS} <= {
        text.text for text in root.iter() if text.tag.endswith("text")
    }
