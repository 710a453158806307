"""`warmlane replica warm`: a prefix read by replicas before anybody asks for it."""

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from gateway.admin.asking import Listing, Report, asking
from gateway.admin.connection import AdminClient, CommandFailed
from gateway.admin.names import PROJECT, find_id
from gateway.admin.options import choice, words
from gateway.warm_wire import MAX_REPLICAS, MAX_TIMEOUT_S
from policies.lane import Lane

COLUMNS = ("replica", "outcome", "prompt_tokens", "cached_tokens", "uncached_tokens", "duration_s", "reason")
_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_MORE_S = 5.0  # than a gateway is given for its replicas


@asking
def warm(
    client: AdminClient,
    *,
    prompt: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A request as clients send it, or its list of messages, in JSON; else the text of a system message. "
            "- reads stdin.",
        ),
    ],
    project: Annotated[str, typer.Option("--project", help="Whose prefix it is, and who pays: a name or id.")],
    model: Annotated[str | None, typer.Option("--model", help="Where the file does not say it.")] = None,
    count: Annotated[int, typer.Option("--count", min=1, max=MAX_REPLICAS, help="On how many replicas.")] = 1,
    names: Annotated[
        list[str] | None, typer.Option("--replica", metavar="NAME", help="On this one; more than once for several.")
    ] = None,
    lane: Annotated[
        Lane, typer.Option("--lane", parser=choice(Lane), metavar="LANE", help=f"In which it waits: {words(Lane)}.")
    ] = Lane.BULK,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, max=MAX_TIMEOUT_S, help="Seconds until a replica is given up.")
    ] = 60.0,
) -> Report:
    """Have replicas read a prefix now, as a request of one token in the name of a project, so that later ones hit it.

    Chosen are those that hold most of it already, then the least loaded. The project is charged as for any request.
    """
    if names and count != 1:
        raise typer.BadParameter("give --count or --replica, not both")
    surface, request = _request(_content(prompt), model)
    body = {
        "project_id": find_id(client, PROJECT, project), "request": request, "surface": surface, "lane": lane.value,
        "timeout_s": timeout, **({"replicas": names} if names else {"count": count}),
    }  # fmt: skip
    told = client.ask("POST", "/replicas/warm", body=body, timeout_s=timeout + _MORE_S)
    rows = told["replicas"]
    failed = [one for one in rows if one["outcome"] != "finished"]
    if len(failed) == len(rows):
        raise CommandFailed(f"no replica has read it: {failed[0]['replica']} {failed[0]['outcome']}: {_why(failed[0])}")
    head = {name: value for name, value in told.items() if name != "replicas"}
    return Report(told, Listing(rows, COLUMNS, empty=""), head)


def _why(row: dict[str, Any]) -> str:
    return str(row["reason"] or "nobody said why")


def _content(given: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if given == "-" else Path(given).read_bytes()
    except OSError as error:
        raise CommandFailed(f"cannot read {given}: {error.strerror}") from error


def _request(content: bytes, model: str | None) -> tuple[str, dict[str, Any]]:
    """(surface, request body). Raises `CommandFailed` for what is neither a prompt nor names a model."""
    try:
        read = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        read = [{"role": "system", "content": _text(content)}, {"role": "user", "content": "."}]
    request: dict[str, Any] = {"messages": read} if isinstance(read, list) else read
    if not isinstance(request, dict) or not ("messages" in request or "prompt" in request):
        raise CommandFailed("the file is no prompt: give a request with messages or prompt, or a list of messages")
    if model is not None:
        request["model"] = model
    if "model" not in request:
        raise CommandFailed("the file names no model: give --model")
    return (_CHAT if "messages" in request else _COMPLETIONS), request


def _text(content: bytes) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise CommandFailed("the file is neither JSON nor text in UTF-8") from error
    if not text.strip():
        raise CommandFailed("the file is empty: there is nothing to read")
    return text
