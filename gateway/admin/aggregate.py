"""One answer from the answers of several gateway processes: numbers are summed, everything else is the first's."""

from typing import Any

from prometheus_client.utils import floatToGoString


def summed(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """JSON objects merged key by key: numbers summed, objects merged, lists joined; of other values the first stays."""
    merged: dict[str, Any] = {}
    for one in objects:
        for name, value in one.items():
            merged[name] = _merged(merged[name], value) if name in merged else value
    return merged


def _merged(first: Any, second: Any) -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        return summed([first, second])
    if isinstance(first, list) and isinstance(second, list):
        return [*first, *second]
    if _is_number(first) and _is_number(second):
        return first + second
    return first


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def summed_exposition(texts: list[str]) -> str:
    """Prometheus texts as one: samples of the same name and labels summed, comments once. One text is unchanged.

    Samples must carry no timestamps and label values no line ends, which holds for what the gateways write.
    """
    if len(texts) == 1:
        return texts[0]
    lines: dict[str, str | float] = {}  # in order; a comment stands for itself, a sample has its sum
    for line in (line for text in texts for line in text.splitlines() if line):
        sample, _, value = line.rpartition(" ")
        if line.startswith("#"):
            lines[line] = ""
        else:
            lines[sample] = float(lines.get(sample, 0.0)) + float(value)
    return "".join(line + _written(value) + "\n" for line, value in lines.items())


def _written(value: str | float) -> str:
    return "" if isinstance(value, str) else f" {floatToGoString(value)}"  # type: ignore[no-untyped-call]
