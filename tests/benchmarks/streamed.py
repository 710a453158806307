"""One streamed completion over a connection of its own, read with as little of the machine as can be.

The client shares its cores with the engine it measures: it notes when each piece came and parses only after the end.
"""

import asyncio
import json
import time
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Streamed:
    """What a stream brought. Times by `time.perf_counter`; `first_at` is the first token's, `came_at` each piece's."""

    begun_at: float
    first_at: float
    ended_at: float
    output_tokens: int
    cached_tokens: int
    text: str
    came_at: tuple[float, ...]

    @property
    def ttft_s(self) -> float:
        """From the request to its first token."""
        return self.first_at - self.begun_at


async def streamed(url: str, path: str, body: dict[str, object]) -> Streamed:
    """Ask `url` (without `/v1`) and read to the end. Raises RuntimeError with the answer if it is not a whole stream."""
    parts = urlsplit(url)
    raw = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    begun_at = time.perf_counter()
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
        pieces: list[tuple[float, bytes]] = []
        while piece := await reader.read(1 << 16):
            pieces.append((time.perf_counter(), piece))
    finally:
        writer.close()
    return _read(begun_at, pieces)


def _read(begun_at: float, pieces: list[tuple[float, bytes]]) -> Streamed:
    whole = b"".join(piece for _, piece in pieces)
    if not whole.startswith(b"HTTP/1.1 200") or b"data: [DONE]" not in whole:
        raise RuntimeError(f"no whole stream came back: {whole[:400]!r}")
    events = [json.loads(line[6:]) for line in whole.splitlines() if line.startswith(b"data: {")]
    texts = [_text(choice) for event in events for choice in event.get("choices", ())]
    usage = next(event["usage"] for event in reversed(events) if event.get("usage"))
    details = usage.get("prompt_tokens_details") or {}
    first_at = _first_token_at(pieces)
    return Streamed(
        begun_at,
        first_at,
        pieces[-1][0],
        usage["completion_tokens"],
        details.get("cached_tokens") or 0,
        "".join(texts),
        tuple(at for at, _ in pieces),
    )


def _text(choice: dict[str, object]) -> str:
    delta = choice.get("delta")
    return str((delta.get("content") if isinstance(delta, dict) else choice.get("text")) or "")


def _first_token_at(pieces: list[tuple[float, bytes]]) -> float:
    """When the first event with text was there: a role or an empty text is none."""
    seen = b""
    for at, piece in pieces:
        seen += piece
        for line in seen.splitlines(keepends=True):
            if not (line.startswith(b"data: {") and line.endswith(b"\n")):
                continue
            if any(_text(choice) for choice in json.loads(line[6:]).get("choices", ())):
                return at
    return pieces[-1][0]
