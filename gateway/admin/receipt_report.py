"""A receipt for people: the candidates as a table, each term of the score (milliseconds) in a column of its own."""

import re
from typing import Any

from gateway.admin.asking import Listing, Report

_TERMS = ("seat", "prefill", "base", "interference", "eviction")
_COLUMNS = ("replica", "score_ms", "hit_tokens", *_TERMS, "assumed", "filtered")
_BODY_ID = re.compile(r"(?:chat)?cmpl-(req_[^-]+)")


def request_of(given: str) -> str:
    """The x-request-id in what a person gave: it itself, or the `id` of an answer's body, `chatcmpl-req_…-1`."""
    found = _BODY_ID.match(given)
    return found[1] if found else given


def candidates_report(receipt: dict[str, Any]) -> Report:
    """The receipt as it came for scripts; for people with flat rows, a filtered one's numbers as dashes."""
    candidates = receipt.get("candidates", [])
    head = {name: value for name, value in receipt.items() if name != "candidates"}
    rows = [_row(one) for one in candidates]
    return Report(receipt, Listing(candidates, _COLUMNS, empty="there were no candidates", rows=rows), head)


def _row(candidate: dict[str, Any]) -> dict[str, Any]:
    hit, terms = candidate.get("hit_tokens") or {}, candidate.get("terms_ms") or {}
    return {**candidate, "hit_tokens": hit.get("fused"), **{term: terms.get(term) for term in _TERMS}}
