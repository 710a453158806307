"""A kept answer in the form that is asked for: a stream made of a whole answer, and the other way round. Pure.

What this module does not know it does not change: an answer with a member of that kind has no other form (None), and
the engine is asked.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gateway import sse

Json = dict[str, Any]

GOOD_ENDS = frozenset({"stop", "length", "tool_calls", "function_call"})  # the model ended, and nobody cut it off
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
_CHOICE = frozenset({"index", "delta", "message", "text", "logprobs", "finish_reason", "stop_reason"})
_MESSAGE = frozenset({"role", "tool_calls", "function_call", *_TEXTS})
_CALL = frozenset({"index", "id", "type", "function"})
_decode = msgspec.json.Decoder(Json).decode


def events_of(raw: bytes) -> list[bytes]:
    """The payloads of a stream, less comments and what is behind its end marker."""
    payloads = sse.EventReader().feed(raw)
    return payloads[: payloads.index(sse.DONE)] if sse.DONE in payloads else payloads


def stream_of(payloads: Iterable[bytes]) -> bytes:
    """A stream of these."""
    return b"".join([*map(sse.event, payloads), sse.event(sse.DONE)])


def ended_well(chunks: Sequence[Json], num_choices: int) -> bool:
    """Whether every choice was ended by the model itself. A whole answer is one chunk."""
    ends: dict[int, str] = {}
    for chunk in chunks:
        if chunk.get("error"):
            return False
        for choice in chunk.get("choices") or ():
            if choice.get("finish_reason") is not None:
                ends[choice.get("index", 0)] = choice["finish_reason"]
    return len(ends) == num_choices and GOOD_ENDS.issuperset(ends.values())


def read_chunks(payloads: Iterable[bytes]) -> list[Json]:
    """Their objects. Raises `msgspec.MsgspecError`."""
    return [_decode(payload) for payload in payloads]


def to_stream(whole: bytes) -> bytes | None:
    """The stream that says the same as a whole answer: a chunk with all that a choice says, and one that ends it."""
    answer = _decode(whole)
    choices, usage = answer.pop("choices"), answer.pop("usage", None)
    if not all(_is_known(choice) for choice in choices):
        return None
    is_chat = answer.get("object") == "chat.completion"
    envelope = answer | ({"object": "chat.completion.chunk"} if is_chat else {})
    chunks: list[Json] = []
    for choice in choices:
        said: Json = {"delta": _delta(choice["message"])} if is_chat else {"text": choice.get("text", "")}
        end: Json = {"delta": {}} if is_chat else {"text": ""}
        place = {"index": choice.get("index", 0)}
        chunks.append(place | said | {"logprobs": choice.get("logprobs"), "finish_reason": None})
        chunks.append(place | end | {"logprobs": None, "finish_reason": choice["finish_reason"]} | _stop_reason(choice))
    told = [envelope | {"choices": [chunk]} for chunk in chunks]
    if usage is not None:
        told.append(envelope | {"choices": [], "usage": usage})
    return stream_of(map(msgspec.json.encode, told))


def to_whole(stream: bytes) -> bytes | None:
    """The whole answer that says the same as a stream."""
    answer: Json = {}
    choices: dict[int, Json] = {}
    for chunk in read_chunks(events_of(stream)):
        for choice in chunk.pop("choices", None) or ():
            if not _is_known(choice) or not _add(choices.setdefault(choice.get("index", 0), {}), choice):
                return None
        answer |= {name: value for name, value in chunk.items() if value is not None or name not in answer}
    if answer.get("object") == "chat.completion.chunk":
        answer["object"] = "chat.completion"
    usage = answer.pop("usage", None)
    answer["choices"] = [_finished(index, choices[index]) for index in sorted(choices)]
    return msgspec.json.encode(answer if usage is None else answer | {"usage": usage})


def _is_known(choice: Json) -> bool:
    said = choice.get("delta") or choice.get("message") or {}
    calls = said.get("tool_calls") or ()
    return (
        _only(choice, _CHOICE)
        and _only(said, _MESSAGE)
        and all(_only(call, _CALL) and _only(call.get("function") or {}, ("name", "arguments")) for call in calls)
        and not said.get("function_call")
        and ("text" not in choice or choice.get("logprobs") is None)
    )


def _only(members: Json, known: Iterable[str]) -> bool:
    """Whether all that it says is of these names."""
    return all(name in known or value in (None, [], {}) for name, value in members.items())


def _delta(message: Json) -> Json:
    delta = {name: value for name, value in message.items() if value is not None and name in _MESSAGE}
    calls = delta.pop("tool_calls", None)
    if calls:
        delta["tool_calls"] = [{"index": index} | call for index, call in enumerate(calls)]
    return delta


def _stop_reason(choice: Json) -> Json:
    return {"stop_reason": choice["stop_reason"]} if "stop_reason" in choice else {}


def _add(whole: Json, choice: Json) -> bool:
    """Add to a choice what one chunk says of it. False for what cannot be added."""
    for name in ("finish_reason", "stop_reason"):
        if choice.get(name) is not None or (name in choice and name not in whole):
            whole[name] = choice[name]
    if "text" in choice:
        whole.setdefault("text", []).append(choice["text"] or "")
        return True
    delta = choice.get("delta") or {}
    whole.setdefault("role", delta.get("role"))
    whole["role"] = whole["role"] or delta.get("role")
    for name in _TEXTS:
        if delta.get(name) is not None:
            whole.setdefault(name, []).append(delta[name])
    return _add_logprobs(whole, choice.get("logprobs")) and all(
        _add_call(whole.setdefault("tool_calls", {}), call) for call in delta.get("tool_calls") or ()
    )


def _add_logprobs(whole: Json, logprobs: Json | None) -> bool:
    kept = whole.setdefault("logprobs", {})
    for name, values in (logprobs or {}).items():
        if values is None:
            continue
        if not isinstance(values, list):
            return False
        kept.setdefault(name, []).extend(values)
    return True


def _add_call(calls: dict[int, Json], call: Json) -> bool:
    if not isinstance(call.get("index"), int):
        return False
    kept = calls.setdefault(call["index"], {"id": None, "type": "function", "name": "", "arguments": []})
    function = call.get("function") or {}
    kept["id"] = kept["id"] or call.get("id")
    kept["type"] = call.get("type") or kept["type"]
    kept["name"] = kept["name"] or function.get("name") or ""
    kept["arguments"].append(function.get("arguments") or "")
    return True


def _finished(index: int, choice: Json) -> Json:
    end = {"logprobs": choice.get("logprobs") or None, "finish_reason": choice.get("finish_reason")}
    end |= _stop_reason(choice)
    if "text" in choice:
        return {"index": index, "text": "".join(choice["text"]), **end}
    texts = {name: "".join(choice[name]) for name in _TEXTS if name in choice}
    message = {"role": choice.get("role") or "assistant", "content": None, "refusal": None} | texts
    calls = [choice["tool_calls"][key] for key in sorted(choice.get("tool_calls", ()))]
    if calls:
        message["content"] = message["content"] or None
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": call["type"],
                "function": {"name": call["name"], "arguments": "".join(call["arguments"])},
            }
            for call in calls
        ]
    return {"index": index, "message": message, **end}
