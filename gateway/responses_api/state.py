"""What a request brings of earlier responses, and what is kept of its own. Pure.

What is kept holds the whole conversation as items, so that the next turn needs one look-up, and what a client sends
back by hand becomes the same prompt as what is found by an id.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct

from gateway.fields import reader
from gateway.responses_api.ids import input_id
from gateway.responses_api.items import encode


class Kept(Struct):
    """As it is written. `items`: all that came before `output`. `output`: of `response`, which is as it was told."""

    response: Raw
    items: list[Raw]
    output: list[Raw]

    def conversation(self) -> list[Raw]:
        """Every item up to the response's last."""
        return self.items + self.output


class Answered(NamedTuple):
    """A response that was told whole. `response`: its JSON; `given`: how many of `items` came with this request."""

    id: str
    items: Sequence[Raw]
    given: int
    response: bytes


Keep = Callable[[Answered], None]


@dataclass(frozen=True, slots=True)
class Earlier:
    """What was found for a request. `referenced`: items by id. `keep`: who keeps its response; None: nobody will."""

    previous: Kept | None = None
    referenced: Mapping[str, Raw] = field(default_factory=dict)
    keep: Keep | None = None

    @property
    def num_bytes(self) -> int:
        """Of what is to be read beside the request's own body."""
        previous = [] if self.previous is None else self.previous.conversation()
        return sum(map(len, previous)) + sum(map(len, self.referenced.values()))


class _Output(Struct):
    output: list[Raw]


class _Id(Struct):
    id: str | None = None


_decode_kept = msgspec.json.Decoder(Kept).decode
_decode_output = msgspec.json.Decoder(_Output).decode
_decode_id = msgspec.json.Decoder(_Id).decode
_members = reader(dict[str, Raw])
_KINDS = {"message": "msg", "function_call": "fc", "function_call_output": "fc", "reasoning": "rs"}
_COMPLETED = Raw(b'"completed"')


def written(answered: Answered) -> bytes:
    """What is kept of it. Takes as long as the conversation is. Raises `msgspec.MsgspecError`."""
    before = len(answered.items) - answered.given
    items = [*answered.items[:before]]
    items += [_shown(item, answered.id, place) for place, item in enumerate(answered.items[before:])]
    output = _decode_output(answered.response).output
    return encode(Kept(Raw(answered.response), items, output))


def read_kept(content: bytes) -> Kept:
    """What `written` wrote. Raises `msgspec.MsgspecError`."""
    return _decode_kept(content)


def id_of(item: Raw) -> str:
    """The id of an item that was written."""
    return _decode_id(item).id or ""


def _shown(item: Raw, response: str, place: int) -> Raw:
    """An item as clients are shown it: with an id, a kind and a status, its content as parts."""
    members: dict[str, Raw] = _members(item)
    kind = _text(members.get("type")) or "message"
    if _text(members.get("id")) is None:
        members["id"] = Raw(encode(input_id(_KINDS[kind], response, place)))
    members["type"] = Raw(encode(kind))
    if kind == "message":
        members["content"] = _parts(members["content"], _text(members["role"]) or "")
    if kind == "reasoning":
        members.setdefault("summary", Raw(b"[]"))
    elif _text(members.get("status")) is None:
        members["status"] = _COMPLETED
    return Raw(encode(members))


def _parts(content: Raw, role: str) -> Raw:
    if not bytes(content).startswith(b'"'):
        return content
    said = {"type": "output_text", "text": content, "annotations": []}
    return Raw(encode([said if role == "assistant" else {"type": "input_text", "text": content}]))


def _text(value: Raw | None) -> str | None:
    """A string's value; None for null and for nothing."""
    found: str | None = None if value is None else msgspec.json.decode(value, type=str | None)
    return found
