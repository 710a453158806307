"""Forms: what is written is read again, and what two readers could take differently is refused."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.adapters.forms import form_body
from engines.contract import Part
from gateway.audio.multipart import MAX_HEAD_BYTES, MAX_PARTS, read_form
from gateway.errors import ClientError

KIND = b"multipart/form-data; boundary=b"
NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters='\\%"'), min_size=1, max_size=8)
SPOILED = st.lists(
    st.sampled_from([b"--b", b"\r\n", b"--", b"\r", b"\n", b"-", b"b", b":", b"a", b"\x00", b";", b'"', b"name="]),
    max_size=24,
).map(b"".join)


def wrong(body, kind=KIND):
    """Why it is refused."""
    with pytest.raises(ClientError) as raised:
        read_form(body, kind)
    return raised.value.problem


def part(name, content=b"x", more=b""):
    """One part of a form."""
    return b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (name, more, content)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(NAMES, st.binary(max_size=200), st.none() | NAMES), max_size=6))
def test_what_is_written_is_read_again(parts):
    """Whatever the bytes, whatever the names: nothing is lost between a client, us and an engine."""
    written = [Part(name, content, filename) for name, content, filename in parts]
    found = read_form(form_body(written, b"0123456789abcdef"), b'multipart/form-data; boundary="0123456789abcdef"')
    assert [(one.name, bytes(one.content), one.filename) for one in found] == parts


@settings(deadline=None, max_examples=150)
@given(SPOILED)
def test_nothing_but_a_refusal_comes_of_what_is_no_form(body):
    """A client's bytes never raise anything else."""
    with contextlib.suppress(ClientError):
        assert read_form(part(b"a") + body, KIND)


@settings(deadline=None, max_examples=60)
@given(st.integers(min_value=0, max_value=200))
def test_a_form_that_is_cut_is_refused(at):
    """No part of it is taken for the whole."""
    body = part(b"model", b"m") + part(b"file", b"audio", b'; filename="a.mp3"') + b"--b--\r\n"
    if at < len(body) - 2:
        assert wrong(body[:at]).status == 400


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"preamble\r\n" + part(b"a") + b"--b--",
        part(b"a") + b"--b--\r\nepilogue",
        part(b"a") + b"--bx\r\n",
        part(b"a", b"one\r\n--bother") + b"--b--",
        b"--b\r\n\r\nno headers\r\n--b--",
        b'--b\r\nContent-Disposition: attachment; name="a"\r\n\r\nx\r\n--b--',
        b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--",
        b'--b\r\nContent-Disposition: form-data; name="a"; name="c"\r\n\r\nx\r\n--b--',
        b'--b\r\nContent-Disposition: form-data; name="a"\r\nContent-Disposition: form-data; name="c"\r\n\r\nx\r\n--b--',
        b'--b\r\nContent-Disposition: form-data; name="a"\r\nContent-Transfer-Encoding: base64\r\n\r\nx\r\n--b--',
        b'--b\r\nContent-Disposition: form-data; name="a"\r\n folded: x\r\n\r\nx\r\n--b--',
        b'--b\r\nContent-Disposition: form-data; name="\xff"\r\n\r\nx\r\n--b--',
        b'--b\r\nContent-Disposition: form-data; name="a\r\n\r\nx\r\n--b--',
        part(b"n" * 300) + b"--b--",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(body):
    """A smuggled field would be seen by the engine and not by us."""
    assert (wrong(body).status, wrong(body).code) == (400, "invalid_form")


@pytest.mark.parametrize("kind", [b"", b"application/json", b"multipart/mixed; boundary=b", b"multipart/form-datax"])
def test_another_type_of_body_is_415(kind):
    """A client that sends JSON learns what is wanted."""
    assert (wrong(part(b"a") + b"--b--", kind).status, wrong(b"", kind).code) == (415, "unsupported_content_type")


@pytest.mark.parametrize(
    "kind",
    [b"multipart/form-data", b"multipart/form-data; boundary=", b'multipart/form-data; boundary="' + b"b" * 71 + b'"'],
)
def test_a_boundary_is_needed(kind):
    """One to seventy characters."""
    assert wrong(part(b"a") + b"--b--", kind).code == "invalid_form"


def test_as_clients_write_it():
    """Quoted and bare boundaries and names, a blank behind the boundary, other headers, any case, an encoded file name."""
    body = (
        b"--b \r\ncontent-type: text/plain\r\nCONTENT-DISPOSITION: Form-Data; name=model\r\n\r\nm\r\n"
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a \\"b\\".mp3"; filename*=UTF-8\'\'a.mp3\r\n'
        b"Content-Length: 0\r\nContent-Type: audio/mpeg; x=1\r\n\r\n\r\n"
        b"--b\r\nContent-Disposition: form-data; name=other; filename*=UTF-8''%C3%A4.wav\r\n\r\nw\r\n--b--"
    )
    found = read_form(body, b'Multipart/Form-Data; charset=utf-8; boundary="b"')
    assert [(one.name, bytes(one.content), one.filename, one.content_type) for one in found] == [
        ("model", b"m", None, b"text/plain"),
        ("file", b"", 'a "b".mp3', b"audio/mpeg"),
        ("other", b"w", "audio", b""),
    ]


def test_a_form_is_bounded():
    """Parts, and the headers of each."""
    assert len(read_form(part(b"a") * MAX_PARTS + b"--b--", KIND)) == MAX_PARTS
    assert str(MAX_PARTS) in wrong(part(b"a") * (MAX_PARTS + 1) + b"--b--").message
    long = b'--b\r\nContent-Disposition: form-data; name="a"\r\nx-y: ' + b"z" * MAX_HEAD_BYTES + b"\r\n\r\nx\r\n--b--"
    assert str(MAX_HEAD_BYTES) in wrong(long).message


def test_what_an_engine_gets_cannot_be_broken_out_of():
    """Names go out as browsers write them."""
    body = form_body([Part('a"\r\nx: y', b"1", 'f"\r\n.mp3')], b"b")
    assert body == (
        b'--b\r\ncontent-disposition: form-data; name="a%22%0D%0Ax: y"; filename="f%22%0D%0A.mp3"\r\n'
        b"content-type: application/octet-stream\r\n\r\n1\r\n--b--\r\n"
    )
