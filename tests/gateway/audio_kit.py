"""Forms with audio in them, and a scripted engine that answers them as OpenAI or as vLLM does.

gateway.script(transcribed("Hel", "lo", language="vllm"))
body, kind = form(stream="true")
answer = await gateway.post(body, path="/v1/audio/transcriptions", headers=[("content-type", kind)])
"""

import json
from dataclasses import dataclass
from email.parser import BytesParser
from email.policy import HTTP

from tests.gateway.kit import MODEL
from tests.scripted_engine import Cut, Framing, Reply, sse

TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
AUDIO = bytes(range(256)) * 8 + b"\r\n--\r\n\r\n--b"  # what looks like a form's own marks must pass
BOUNDARY = "a-boundary"


def form(*, audio=AUDIO, boundary=BOUNDARY, parts=(), **fields):
    """(body, content-type) of a form with a file and these fields; `parts`: more (name, value) pairs."""
    pairs = [*({"model": MODEL} | fields).items(), *parts]
    texts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in pairs
    ]
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a.mp3"\r\nContent-Type: audio/mpeg\r\n\r\n'
    file = b"" if audio is None else head.encode() + audio + b"\r\n"
    return "".join(texts).encode() + file + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def parts_of(request):
    """{name: (filename, content)} of the form that an engine got, read by the standard library."""
    kind = request.header("content-type").encode()
    message = BytesParser(policy=HTTP).parsebytes(b"content-type: " + kind + b"\r\n\r\n" + request.body)
    found = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        assert name not in found, f"{name} came twice"
        found[name] = (part.get_filename(), part.get_payload(decode=True))
    return found


@dataclass
class transcribed:  # noqa: N801  # a script is called like `answer`
    """A script. `language`: "openai" or "vllm". `usage`: as the engine tells it, None for none.

    `as_text`: a whole answer is no JSON. `is_whole`: one answers whole whatever was asked. `gate`: before the second
    word. `cut`: the connection ends there.
    """

    words: tuple
    language: str = "openai"
    usage: dict | None = None
    as_text: bool = False
    is_whole: bool = False
    gate: object = None
    cut: object = None
    has_end: bool = True
    more: dict = None

    def __init__(self, *words, **options):
        self.words = words
        for name, value in options.items():
            assert name in self.__dataclass_fields__
            setattr(self, name, value)

    def __call__(self, request):
        asked = parts_of(request)
        if self.is_whole or asked.get("stream", (None, b"false"))[1] != b"true":
            return self._whole()
        events = list(self._events(asked))
        steps = []
        for number, event in enumerate(events):
            if number == 1:
                steps += [one for one in (self.gate, self.cut) if one is not None]
                if self.cut is not None:
                    break
            steps.append(sse(event if isinstance(event, str) else json.dumps(event)))
        return Reply(steps, headers=[("content-type", "text/event-stream; charset=utf-8")])

    def _whole(self):
        text = "".join(self.words)
        body = {"text": text, **(self.more or {})} | ({} if self.usage is None else {"usage": self.usage})
        raw = text.encode() if self.as_text else json.dumps(body).encode()
        kind = "text/plain" if self.as_text else "application/json"
        gates = [] if self.gate is None else [self.gate]
        if self.cut is not None:
            half = [*gates, raw[: len(raw) // 2], self.cut]
            return Reply(half, headers=[("content-type", kind)], framing=Framing.LENGTH, declared_length=len(raw))
        return Reply([*gates, raw], headers=[("content-type", kind)], framing=Framing.LENGTH)

    def _events(self, asked):
        if self.language == "openai":
            yield from ({"type": "transcript.text.delta", "delta": word, "logprobs": []} for word in self.words)
            if self.has_end:
                usage = {} if self.usage is None else {"usage": self.usage}
                yield {"type": "transcript.text.done", "text": "".join(self.words), **usage}
            return
        shape = {"id": "trsc-x", "object": "transcription.chunk", "created": 1, "model": asked["model"][1].decode()}
        for number, word in enumerate(self.words, start=1):
            reason = "stop" if number == len(self.words) and self.has_end else None
            yield shape | {"choices": [{"delta": {"content": word}, "finish_reason": reason, "stop_reason": None}]}
        if self.usage is not None and asked.get("stream_include_usage", (None, b""))[1] == b"true":
            yield shape | {"choices": [], "usage": self.usage}
        if self.has_end:
            yield "[DONE]"


TOKENS = {
    "type": "tokens", "input_tokens": 30, "output_tokens": 4, "total_tokens": 34,
    "input_token_details": {"text_tokens": 0, "audio_tokens": 30},
}  # fmt: skip
SECONDS = {"type": "duration", "seconds": 6}
CHAT_TOKENS = {"prompt_tokens": 30, "completion_tokens": 4, "total_tokens": 34}
RESET = Cut.RESET
