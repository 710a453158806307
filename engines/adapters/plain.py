"""The policy every OpenAI-compatible engine shares: pass on what the client said, except what steers.

Unknown fields survive (they may be the engine's own), nested values keep the client's bytes, and a stream always
reports its usage, because usage is what is charged. Engines differ by the small classes beside this one.
"""

from collections.abc import Callable, Sequence

import msgspec

from engines.adapters.forms import form_body, text_part
from engines.adapters.steering import (
    CARRIERS,
    GATEWAY_FIELDS,
    STEERING_FIELDS,
    STEERING_PREFIX,
    STEERING_TEMPLATE_VARIABLES,
    folded,
)
from engines.adapters.surfaces import (
    FORM_SURFACES,
    OPENAI_PATHS,
    OWN_FIELDS,
    OWN_FORM_FIELDS,
    TEXT_SURFACES,
    Paths,
    form_field,
)
from engines.contract import Capabilities, Headers, LoadReport, Part, Steering

_Fields = dict[str, msgspec.Raw]

_read_object = msgspec.json.Decoder(_Fields).decode
_encode = msgspec.json.Encoder().encode
_TRUE = msgspec.Raw(b"true")
_FALSE = msgspec.Raw(b"false")


class PlainAdapter:
    """An OpenAI-compatible server of which nothing more is known."""

    kind = "plain"
    capabilities = Capabilities()
    health_path = "/v1/models"
    load_path: str | None = None
    paths: Paths = OPENAI_PATHS
    tells_tasks = False
    usual_tasks: frozenset[str] | None = None
    form_fields: frozenset[str] = OWN_FORM_FIELDS

    def body(self, fields: _Fields, steering: Steering) -> bytes:
        """The upstream JSON body (see `EngineAdapter.body`)."""
        if steering.surface:
            return _encode(self.input_fields(fields, steering))
        kept = {name: value for name, value in fields.items() if self.forwards(name)}
        kept["model"] = _raw(steering.model)
        if "stream" in kept or steering.is_streaming:
            kept["stream"] = _TRUE if steering.is_streaming else _FALSE
        if steering.is_streaming:
            options = _object(kept.get("stream_options"))
            options["include_usage"] = _TRUE
            kept["stream_options"] = msgspec.Raw(_encode(options))
        if "chat_template_kwargs" in kept:
            kept["chat_template_kwargs"] = _filtered(kept["chat_template_kwargs"], _is_no_template)
        for name in CARRIERS & kept.keys():
            kept[name] = _filtered(kept[name], _is_harmless)
        kept.update(self.own_fields(steering))
        return _encode(kept)

    def input_fields(self, fields: _Fields, steering: Steering) -> _Fields:
        """The upstream fields of a surface that generates no text."""
        takes = self.takes(steering.surface)
        kept = {name: value for name, value in fields.items() if name in takes}
        kept["model"] = _raw(steering.model)
        if "chat_template_kwargs" in kept:
            kept["chat_template_kwargs"] = _filtered(kept["chat_template_kwargs"], _is_no_template)
        if steering.surface not in TEXT_SURFACES:
            kept.update(self.own_fields(steering))
        return kept

    def form(self, parts: Sequence[Part], steering: Steering) -> bytes:
        """The upstream multipart body (see `EngineAdapter.form`)."""
        kept = [part for part in parts if form_field(part.name) in self.form_fields and part.name != "model"]
        return form_body([text_part("model", steering.model), *self.own_parts(steering), *kept], _boundary(steering))

    def takes(self, surface: str) -> frozenset[str]:
        """The client's fields that are passed on there."""
        return OWN_FIELDS[surface]

    def headers(self, steering: Steering, api_key: str | None) -> Headers:
        """The engine's key, how a form is cut, and what `own_headers` adds."""
        headers: Headers = [] if api_key is None else [(b"authorization", b"Bearer " + api_key.encode())]
        if steering.surface in FORM_SURFACES:
            headers.append((b"content-type", b"multipart/form-data; boundary=" + _boundary(steering)))
        return headers + self.own_headers(steering)

    def read_load(self, body: bytes) -> LoadReport:  # noqa: ARG002  (the contract's signature)
        """Nothing: a plain server does not report load."""
        return LoadReport()

    def forwards(self, name: str) -> bool:
        """Whether a client's field of this name is passed on."""
        if name in GATEWAY_FIELDS:
            return True
        return _is_harmless(name) and folded(name) not in GATEWAY_FIELDS

    def own_fields(self, steering: Steering) -> _Fields:  # noqa: ARG002  (for the engines that have some)
        """Fields the gateway sets for this engine."""
        return {}

    def own_parts(self, steering: Steering) -> list[Part]:  # noqa: ARG002  (for the engines that have some)
        """Fields of a form that the gateway sets for this engine."""
        return []

    def own_headers(self, steering: Steering) -> Headers:  # noqa: ARG002  (for the engines that have some)
        """Headers the gateway sets for this engine."""
        return []


def raw_fields(**values: str | int) -> _Fields:
    """Fields of our own, encoded."""
    return {name: _raw(value) for name, value in values.items()}


def attempt_headers(steering: Steering) -> Headers:
    """The id of this attempt, never the client's (a retry must not collide with what it retries), and the trace."""
    headers: Headers = [(b"x-request-id", steering.attempt_id.encode())]
    if steering.traceparent is not None:
        headers.append((b"traceparent", steering.traceparent.encode()))
    return headers


def _boundary(steering: Steering) -> bytes:
    """What parts a form of this attempt: its id, of which half is drawn by lot and nobody was told."""
    return b"warmlane-" + steering.attempt_id.encode()


def _raw(value: str | int) -> msgspec.Raw:
    return msgspec.Raw(_encode(value))


def _object(value: msgspec.Raw | None) -> _Fields:
    """The members of a JSON object; none for anything else."""
    try:
        return {} if value is None else _read_object(value)
    except msgspec.DecodeError:
        return {}


def _is_harmless(name: str) -> bool:
    plain = folded(name)
    return plain not in STEERING_FIELDS and not plain.startswith(STEERING_PREFIX)


def _is_no_template(name: str) -> bool:
    return folded(name) not in STEERING_TEMPLATE_VARIABLES


def _filtered(value: msgspec.Raw, is_kept: Callable[[str], bool]) -> msgspec.Raw:
    """The same object less the members that are not kept; the same bytes if it has none of those."""
    members = _object(value)
    kept = {name: raw for name, raw in members.items() if is_kept(name)}
    return value if len(kept) == len(members) else msgspec.Raw(_encode(kept))
