"""One answer from the answers of several gateway processes: numbers are summed, everything else is the first's.

What each of them says of the same thing, such as the seats of a replica, is not summed: the largest stands.
"""

from typing import Any

from prometheus_client.utils import floatToGoString

_OF_THE_SAME = ("warmlane_replica_", "warmlane_bulk_seats", "warmlane_gateways ")
_COUNTED_BY_EACH = ("in_flight", "outstanding_tokens")  # of a replica; the rest is a view of the same


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


def merged_replicas(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """The replicas by name, as the first gateway that knows one sees it; what each counts there is summed.

    Held back is who any of them holds back.
    """
    known: dict[str, dict[str, Any]] = {}
    for replica in (replica for answer in answers for replica in answer["data"]):
        first = known.setdefault(replica["name"], replica)
        if first is not replica:
            first.update({name: _merged(first[name], replica[name]) for name in _COUNTED_BY_EACH})
            if not first.get("held_back") and replica.get("held_back"):  # each gateway judges by itself
                first["held_back"] = replica["held_back"]
    return {**answers[0], "data": list(known.values())}


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
        elif line.startswith(_OF_THE_SAME):
            lines[sample] = max(float(lines.get(sample, 0.0)), float(value))
        else:
            lines[sample] = float(lines.get(sample, 0.0)) + float(value)
    return "".join(line + _written(value) + "\n" for line, value in lines.items())


def _written(value: str | float) -> str:
    return "" if isinstance(value, str) else f" {floatToGoString(value)}"  # type: ignore[no-untyped-call]
