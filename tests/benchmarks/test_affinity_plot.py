"""The picture of the grid is well-formed and shows every cell where it belongs."""

from xml.etree import ElementTree as ET

from tests.benchmarks.affinity_plot import chart

CELLS = [
    {"replicas": 8, "kv": 0.25, "load": 0.5, "p95_ratio": 0.7, "hit_of_fastest": 1.1},
    {"replicas": 64, "kv": 1.0, "load": 0.9, "p95_ratio": 9.0, "hit_of_fastest": 1.0},
]


def test_each_cell_has_two_marks_and_a_ratio_off_the_axis_is_drawn_at_its_end():
    """Two circles a cell beside the legend's two; the higher the ratio, the higher the mark."""
    root = ET.fromstring(chart(CELLS))
    circles = [circle for circle in root if circle.tag.endswith("circle")]
    assert len(circles) == 2 * len(CELLS) + 2
    heights = [float(circle.get("cy")) for circle in circles[:4]]
    assert heights[2] == min(heights) == 44
    assert heights[0] > heights[1]
    assert {"64", "0.25"} <= {text.text for text in root.iter() if text.tag.endswith("text")}
