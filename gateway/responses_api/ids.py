"""The ids of responses and what is in them: all of one response are made of its request's, so that it is found."""

import re

_ITEM = re.compile(r"[a-z]{2,4}_([0-9a-f]{1,64})_(?:in)?[0-9]+")
_RESPONSE = re.compile(r"resp_[0-9a-f]{1,64}")


def response_id(request_id: str) -> str:
    """Of the response to a request."""
    return "resp_" + request_id.removeprefix("req_")


def item_id(kind: str, request_id: str, place: int) -> str:
    """Of what a response told. `kind`: msg, fc, rs; call for a call's own id."""
    return f"{kind}_{request_id.removeprefix('req_')}_{place}"


def input_id(kind: str, of_response: str, place: int) -> str:
    """Of what a response was asked with and that had none."""
    return f"{kind}_{of_response.removeprefix('resp_')}_in{place}"


def response_of(item: str) -> str | None:
    """The id of the response that this item belongs to; None for an id that is none of ours."""
    found = _ITEM.fullmatch(item)
    return None if found is None else f"resp_{found.group(1)}"


def is_response_id(word: str) -> bool:
    """Whether a response could have this id."""
    return _RESPONSE.fullmatch(word) is not None
