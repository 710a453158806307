"""The form of an audio request, read into what it asks for. Pure; the audio itself is measured, never decoded."""

import math
import re
from dataclasses import dataclass

from engines.adapters.surfaces import STANDARD_FORM_FIELDS, form_field
from engines.contract import Part
from gateway.audio.multipart import read_form, text_of
from gateway.errors import ClientError
from gateway.wanted import Inputs, Transcript

TOKENS_PER_S = 10  # OpenAI's: a token for each tenth of a second
BYTES_PER_S = 8000  # chosen: 64 kbit/s, between speech at 32 and music at 128
MAX_TEXT_BYTES = 1 << 20  # chosen: of one field that is no file; the longest is a speaker's voice as a data: URL
_WAV_RATES = (BYTES_PER_S, 192_000)  # bytes a second that a header is believed; the most is 48 kHz stereo in 16 bits
_HOME_BYTES = 4096  # of the file's end, which tells files apart

_FORMATS = frozenset({"json", "text", "srt", "verbose_json", "vtt", "diarized_json"})
_JSON_FORMATS = frozenset({"json", "verbose_json", "diarized_json"})
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_LISTS = frozenset(
    {"timestamp_granularities", "include", "languages", "keywords", "known_speaker_names", "known_speaker_references"}
)
_DATA_URL = re.compile(r"\s*data:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class AudioRequest:
    """`model` as the client names it, empty for none. `form`: the parts; an adapter passes on those that it knows."""

    model: str
    form: tuple[Part, ...]
    is_streaming: bool
    inputs: Inputs


def read_audio(surface: str, body: bytes, content_type: bytes) -> AudioRequest:
    """What a form of one of these surfaces asks for. Raises `ClientError` (400, 415) naming the field that is wrong."""
    parts = read_form(body, content_type)
    texts = _texts(parts)
    audio = _file(parts)
    asked = texts.get("response_format") or "json"
    if asked not in _FORMATS:
        message = f"response_format must be one of {', '.join(sorted(_FORMATS))}"
        raise ClientError(message, param="response_format")
    _check_temperature(texts.get("temperature"))
    inputs = Inputs(
        surface,
        Transcript(is_json=asked in _JSON_FORMATS),
        bytes(audio[-_HOME_BYTES:]),
        num_tokens=math.ceil(TOKENS_PER_S * audio_seconds(audio)),
        teaches=False,
    )
    return AudioRequest(texts.get("model", ""), tuple(parts), _flag(texts, "stream"), inputs)


def audio_seconds(audio: bytes | memoryview) -> float:
    """About how long a file is: a WAV by its own rate, within reason; else by what compressed speech takes."""
    head = bytes(audio[:44])
    rate = BYTES_PER_S
    if head[:4] == b"RIFF" and head[8:16] == b"WAVEfmt ":
        least, most = _WAV_RATES
        rate = min(most, max(least, int.from_bytes(head[28:32], "little")))
    return len(audio) / rate


def _file(parts: list[Part]) -> memoryview:
    files = [part for part in parts if part.name == "file"]
    if len(files) != 1 or files[0].filename is None or not len(files[0].content):
        raise ClientError("file must be one audio file that is not empty", param="file")
    if len([part for part in parts if part.filename is not None]) > 1:
        raise ClientError("the form may hold one file only", param="file")
    return memoryview(files[0].content)


def _texts(parts: list[Part]) -> dict[str, str]:
    """The fields that are texts, less lists. Raises `ClientError` for one that comes twice or is no text."""
    found: dict[str, str] = {}
    for part in parts:
        if part.filename is not None or form_field(part.name) not in STANDARD_FORM_FIELDS:
            continue
        if len(part.content) > MAX_TEXT_BYTES:
            raise ClientError(f"{part.name} is longer than {MAX_TEXT_BYTES} bytes", param=part.name)
        text = text_of(part)
        if form_field(part.name) == "known_speaker_references" and not _DATA_URL.match(text):
            raise ClientError(f"{part.name} must be data: URLs: no engine fetches what a client names", param=part.name)
        if form_field(part.name) not in _LISTS and part.name in found:
            raise ClientError(f"{part.name} stands in the form more than once", param=part.name)
        found[part.name] = text
    return found


def _flag(texts: dict[str, str], name: str) -> bool:
    asked = texts.get(name) or "false"
    if asked.lower() not in _FLAGS:
        raise ClientError(f"{name} must be true or false", param=name)
    return _FLAGS[asked.lower()]


def _check_temperature(text: str | None) -> None:
    try:
        is_fine = not text or 0 <= float(text) <= 2
    except ValueError:
        is_fine = False
    if not is_fine:
        raise ClientError("temperature must be a number from 0 to 2", param="temperature")
