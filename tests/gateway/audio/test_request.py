"""What a form of audio asks for: its fields, its length in tokens, and which of them an engine gets."""

import struct

import pytest

from engines.adapters import ADAPTERS
from engines.adapters.surfaces import TRANSCRIPTIONS
from engines.contract import Part, Steering
from gateway.audio.request import BYTES_PER_S, MAX_TEXT_BYTES, audio_seconds, read_audio
from gateway.errors import ClientError
from gateway.request import Surface, read
from policies.lane import Lane
from tests.gateway.audio_kit import AUDIO, form

STEERING = Steering("upstream", Lane.INTERACTIVE, "salt", "req_0-1", is_streaming=True, surface=TRANSCRIPTIONS)


def wrong(**fields):
    """(status, field) of the refusal."""
    body, kind = form(**fields)
    with pytest.raises(ClientError) as raised:
        read(Surface.TRANSCRIPTIONS, body, content_type=kind.encode())
    return raised.value.problem.status, raised.value.problem.param


def test_a_form_is_read():
    """Model, stream, format, and a view of the audio."""
    body, kind = form(stream="True", response_format="srt", language="de")
    found = read(Surface.TRANSCRIPTIONS, body, content_type=kind.encode())
    assert (found.model, found.is_streaming, found.inputs.wanted.is_json) == ("small-a", True, False)
    assert bytes(found.form[-1].content) == AUDIO
    assert found.inputs.num_tokens == -(-10 * len(AUDIO) // BYTES_PER_S)
    assert (found.inputs.surface, found.inputs.teaches, found.segments) == (TRANSCRIPTIONS, False, ())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ""}, "model"),
        ({"model": "m" * 257}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"response_format": "xml"}, "response_format"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": "nan"}, "temperature"),
        ({"temperature": "2.5"}, "temperature"),
        ({"audio": b""}, "file"),
        ({"audio": None}, "file"),
        ({"parts": [("model", "other")]}, "model"),
        ({"parts": [("known_speaker_references[]", "https://example.com/a.wav")]}, "known_speaker_references[]"),
        ({"prompt": "p" * (MAX_TEXT_BYTES + 1)}, "prompt"),
    ],
)
def test_what_is_wrong_is_named(fields, param):
    """400, with the field."""
    assert wrong(**fields) == (400, param)


def test_a_text_that_is_no_text_and_a_second_file_are_refused():
    """An engine must not see another model, or another file, than we do."""
    head = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\n\xff\r\n'
    file = b'--b\r\ncontent-disposition: form-data; name="%b"; filename="f"\r\n\r\nx\r\n'
    for body, param in ((head, "model"), (file % b"file" * 2, "file"), (file % b"file" + file % b"other", "file")):
        with pytest.raises(ClientError) as raised:
            read_audio(TRANSCRIPTIONS, body + b"--b--", b"multipart/form-data; boundary=b")
        assert raised.value.problem.param == param


@pytest.mark.parametrize(("rate", "seconds"), [(32_000, 10.0), (1 << 31, 320_000 / 192_000), (1, 40.0)])
def test_a_wav_is_as_long_as_it_says_within_reason(rate, seconds):
    """Who lies about it pays what could be at most or least in so many bytes."""
    head = b"RIFF\0\0\0\0WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16_000, rate, 2, 16) + b"data\0\0\0\0"
    assert audio_seconds(head + bytes(320_000 - len(head))) == pytest.approx(seconds)
    assert audio_seconds(b"RIFF") == 4 / BYTES_PER_S


PARTS = [
    Part("file", b"x", "a.mp3"),
    *(
        Part(name, b"1")
        for name in ("model", "language", "timestamp_granularities[]", "seed", "vllm_xargs", "priority")
    ),
    *(Part(name, b"1") for name in ("chunking_strategy[type]", "cache_salt", "url", "stream")),
]


@pytest.mark.parametrize(
    ("kind", "added"),
    [("vllm", {"seed", "stream_include_usage"}), ("llama-server", {"seed"}), ("openai", set())],
)
def test_an_engine_gets_what_is_of_the_surface_and_its_own_name_of_the_model(kind, added):
    """An allow-list: what steers, or is fetched, does not go through."""
    adapter = ADAPTERS[kind]
    body = adapter.form(PARTS, STEERING)
    (boundary,) = (value for name, value in adapter.headers(STEERING, None) if name == b"content-type")
    names = {one.split(b'"')[1].decode() for one in body.split(b"content-disposition: form-data; name=")[1:]}
    assert (
        names == {"model", "file", "language", "timestamp_granularities[]", "chunking_strategy[type]", "stream"} | added
    )
    assert body.startswith(b"--" + boundary.partition(b"boundary=")[2] + b"\r\n")
    assert b'name="model"\r\n\r\nupstream\r\n' in body


def test_our_own_workers_do_not_hear():
    """Nobody is sent to where no such endpoint is."""
    assert TRANSCRIPTIONS not in ADAPTERS["warmlane"].paths
    assert all(TRANSCRIPTIONS in ADAPTERS[kind].paths for kind in ("vllm", "llama-server", "openai"))
