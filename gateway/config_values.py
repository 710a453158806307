"""Kinds of values in the configuration: what may stand there, whichever section it is in."""

import re
from collections.abc import Iterable
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from engines.upstream import Upstream
from engines.upstream.addresses import no_engine_at

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)]
UsdPerMillion = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_URL = re.compile(r"https?://[^/?#\s]+(/[^?#\s]*)?")


def _plain_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("use 1 to 128 letters, digits and . _ : / -, beginning with a letter or digit")
    return name


def _http_url(url: str) -> str:
    if not _URL.fullmatch(url):
        raise ValueError("give an http:// or https:// URL without query, such as http://127.0.0.1:8000")
    url = url.rstrip("/").removesuffix("/v1")
    Upstream.from_url(url)  # what cannot be connected to (a user, a bad port or host) must not pass a check
    if (why := no_engine_at(urlsplit(url).hostname or "")) is not None:
        raise ValueError(why)
    return url


Name = Annotated[str, AfterValidator(_plain_name)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]


def refuse_half_pairs(roles: Iterable[tuple[str, str]]) -> None:
    """A model is served by whole replicas, or by some that read prompts and some that answer. Raises `ValueError`.

    `roles`: (model, role) of every replica.
    """
    by_model: dict[str, set[str]] = {}
    for model, role in roles:
        by_model.setdefault(model, set()).add(role)
    for model, found in by_model.items():
        if found in ({"prefill"}, {"decode"}):
            missing = ({"prefill", "decode"} - found).pop()
            raise ValueError(f"model {model!r} has replicas with role {found.pop()!r} and none with {missing!r}")
        if "whole" in found and len(found) > 1:
            raise ValueError(f"model {model!r} has whole replicas beside such with a role: give all one, or none")
