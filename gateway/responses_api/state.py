"""What a request brings of earlier responses, and what is kept of its own. Pure.

What is kept holds the whole conversation as items, so that the next turn needs one look-up, and what a client sends
back by hand becomes the same prompt as what is found by an id.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from gateway.errors import ClientError
from gateway.responses_api.ids import input_id
from gateway.responses_api.items import encode

MAX_KEPT_BYTES = 4 << 20  # of a conversation that is kept, with what its response says again; chosen: a million tokens
MAX_REFERENCED_BYTES = MAX_KEPT_BYTES  # of items that one request refers to, each as often as it does


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


class _Shown(Struct):
    """What is kept of an item: what has a meaning. An item may have a million other members."""

    id: str | None = None
    type: str | None = None
    status: str | UnsetType | None = UNSET
    role: str | UnsetType = UNSET
    content: Raw | UnsetType = UNSET
    summary: Raw | UnsetType = UNSET
    encrypted_content: Raw | UnsetType = UNSET
    call_id: Raw | UnsetType = UNSET
    name: Raw | UnsetType = UNSET
    namespace: Raw | UnsetType = UNSET
    phase: Raw | UnsetType = UNSET
    arguments: Raw | UnsetType = UNSET
    output: Raw | UnsetType = UNSET


_decode_kept = msgspec.json.Decoder(Kept).decode
_decode_output = msgspec.json.Decoder(_Output).decode
_decode_id = msgspec.json.Decoder(_Id).decode
_decode_shown = msgspec.json.Decoder(_Shown).decode
_KINDS = {"message": "msg", "function_call": "fc", "function_call_output": "fc", "reasoning": "rs"}


def too_much_referenced() -> ClientError:
    """400: a few bytes of a request would stand for far more than its body may have."""
    return ClientError(f"input may refer to items of at most {MAX_REFERENCED_BYTES >> 20} MiB together", param="input")


def written(answered: Answered) -> bytes:
    """What is kept of it. Takes as long as the conversation is. Raises `msgspec.MsgspecError`, `RecursionError`."""
    before = len(answered.items) - answered.given
    items = [*answered.items[:before]]
    ids = {id_of(item) for item in items}  # an id that comes again gets another: pages begin behind an id
    for place, item in enumerate(answered.items[before:]):
        shown = _shown(item, answered.id, place, ids)
        ids.add(shown.id or "")
        items.append(Raw(encode(shown)))
    output = _decode_output(answered.response).output
    return encode(Kept(Raw(answered.response), items, output))


def read_kept(content: bytes) -> Kept:
    """What `written` wrote. Raises `msgspec.MsgspecError`."""
    return _decode_kept(content)


def id_of(item: Raw) -> str:
    """The id of an item that was written."""
    return _decode_id(item).id or ""


def _shown(item: Raw, response: str, place: int, taken: Container[str]) -> _Shown:
    """An item as clients are shown it: with an id, a kind and a status, its content as parts."""
    shown: _Shown = _decode_shown(item)
    kind = shown.type = shown.type or "message"
    if not shown.id or shown.id in taken:
        shown.id = input_id(_KINDS[kind], response, place)
    if kind == "message" and shown.content is not UNSET:
        shown.content = _parts(shown.content, shown.role)
    if kind == "reasoning":
        shown.summary = Raw(b"[]") if shown.summary is UNSET else shown.summary
        shown.status = UNSET if shown.status is None else shown.status
    elif shown.status is UNSET or shown.status is None:
        shown.status = "completed"
    return shown


def _parts(content: Raw, role: str | UnsetType) -> Raw:
    if bytes(memoryview(content)[:1]) != b'"':
        return content
    said = {"type": "output_text", "text": content, "annotations": []}
    return Raw(encode([said if role == "assistant" else {"type": "input_text", "text": content}]))
