"""The one stdout line by which a process of ours says that it serves: `ready url=http://127.0.0.1:8080/v1 model=…`.

Values are `key=value` without spaces, so that a script can split the line; keys we do not know are kept.
"""

import re
from dataclasses import dataclass

_FIELD = re.compile(r"([a-z_]+)=(\S*)")


@dataclass(frozen=True, slots=True)
class ReadyLine:
    """What a ready process said. `fields` holds every key of the line, in its order."""

    fields: tuple[tuple[str, str], ...]

    def get(self, key: str) -> str:
        """The value of a key, empty if the line does not have it."""
        return dict(self.fields).get(key, "")

    @property
    def url(self) -> str:
        """The address as printed, with its `/v1`."""
        return self.get("url")

    @property
    def base_url(self) -> str:
        """The address without `/v1`, as replicas are configured."""
        return self.url.removesuffix("/v1")

    def __str__(self) -> str:
        return " ".join(["ready", *(f"{key}={value}" for key, value in self.fields)])


def ready_line(**fields: str) -> ReadyLine:
    """A line of these fields, in order. A value with white space would break the line and is a bug of the caller."""
    for key, value in fields.items():
        assert re.fullmatch(r"\S+", value), f"a ready line cannot carry {key}={value!r}"
    return ReadyLine(tuple(fields.items()))


def parse_ready_line(line: str) -> ReadyLine | None:
    """The ready line in `line`, or None when it is anything else."""
    word, *rest = line.split()[:32] or [""]
    matches = [_FIELD.fullmatch(part) for part in rest]
    fields = tuple((match[1], match[2]) for match in matches if match)
    if word != "ready" or len(fields) != len(matches) or not dict(fields).get("url"):
        return None
    return ReadyLine(fields)
