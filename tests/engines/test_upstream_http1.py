"""Requests written and answers read, without a socket."""

import contextlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.contract import Fault, ReplicaError
from engines.upstream.http1 import AnswerReader, request_head, without_hop_by_hop

# A reader makes no loop; the sink here is a plain recorder.


class Recorder:
    def __init__(self):
        self.heads = []
        self.body = b""

    def on_head(self, status, headers):
        self.heads.append((status, headers))

    def on_data(self, data):
        self.body += data

    def on_flush(self):
        pytest.fail("flushes are the connection's to tell")

    on_end = on_flush
    on_fail = on_flush


def read(*pieces, max_head_bytes=1000):
    reader, sink = AnswerReader(max_head_bytes), Recorder()
    reader.begin(sink)
    for piece in pieces:
        reader.feed(piece)
    return reader, sink


class TestRequestHead:
    def test_declares_exactly_the_bodys_length(self):
        """A body that was rewritten must not carry its old length (P03)."""
        head = request_head("POST", b"/v1/x", b"engine:8000", [(b"x-request-id", b"a")], 12)
        assert head == (
            b"POST /v1/x HTTP/1.1\r\nhost: engine:8000\r\nx-request-id: a\r\naccept-encoding: identity\r\n"
            b"content-type: application/json\r\ncontent-length: 12\r\n\r\n"
        )

    def test_a_get_without_body_declares_none(self):
        """Some servers wait for a body that a GET announces."""
        assert (
            request_head("GET", b"/health", b"e", [], 0)
            == b"GET /health HTTP/1.1\r\nhost: e\r\naccept-encoding: identity\r\n\r\n"
        )

    def test_the_caller_may_choose_type_and_encoding(self):
        """An upload is not JSON."""
        head = request_head("POST", b"/", b"e", [(b"Content-Type", b"a/b"), (b"Accept-Encoding", b"gzip")], 0)
        assert head.lower().count(b"content-type") == head.lower().count(b"accept-encoding") == 1

    @pytest.mark.parametrize("value", [b"a\r\nx: y", b"a\nb", b"a\rb", b"a\0b", b"\x7f", b"\x1b[2J"])
    def test_a_header_value_cannot_end_its_line(self, value):
        """A line end in a value would be a header, or a request, of the client's making (P43)."""
        with pytest.raises(ValueError, match="does not allow"):
            request_head("POST", b"/", b"e", [(b"x-a", value)], 0)

    @pytest.mark.parametrize("name", [b"", b"x a", b"x:", b"x\r\n", b"\xc3\xa9"])
    def test_a_header_name_is_a_token(self, name):
        """A name with a colon or space is two things at once."""
        with pytest.raises(ValueError, match="does not allow"):
            request_head("POST", b"/", b"e", [(name, b"v")], 0)

    @pytest.mark.parametrize(
        "name", [b"Content-Length", b"transfer-encoding", b"Host", b"connection", b"te", b"upgrade"]
    )
    def test_framing_is_not_the_callers(self, name):
        """Two lengths are a smuggled request."""
        with pytest.raises(ValueError, match="set by the client itself"):
            request_head("POST", b"/", b"e", [(name, b"1")], 0)

    @pytest.mark.parametrize("target", [b"", b"v1", b"/a b", b"/a\r\nx:y", b"/\xe9", b"http://other/"])
    def test_a_target_is_a_plain_absolute_path(self, target):
        """Anything else could name another host or end the line."""
        with pytest.raises(ValueError, match="not an absolute path"):
            request_head("POST", target, b"e", [], 0)

    @pytest.mark.parametrize("method", ["HEAD", "CONNECT", "get", "POST x"])
    def test_only_methods_whose_answers_can_be_read(self, method):
        """An answer to HEAD declares a body that never comes."""
        with pytest.raises(ValueError, match="is not one of"):
            request_head(method, b"/", b"e", [], 0)


class TestAnswerReader:
    def test_hop_by_hop_headers_stay_on_their_connection(self):
        """Also those that `Connection` names: they would mislead the client (P03)."""
        _, sink = read(
            b"HTTP/1.1 200 OK\r\nConnection: X-Secret-Hop , keep-alive\r\nX-Secret-Hop: 1\r\nKeep-Alive: timeout=5\r\n"
            b"Transfer-Encoding: chunked\r\nX-Stays: Yes\r\nTrailer: t\r\n\r\n"
        )
        assert sink.heads == [(200, [(b"x-stays", b"Yes")])]

    def test_interim_answers_are_skipped(self):
        """100 Continue and 103 Early Hints are not the answer."""
        reader, sink = read(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
        )
        assert (sink.heads, sink.body) == ([(200, [(b"content-length", b"2")])], b"hi")
        assert reader.is_complete
        assert reader.can_reuse

    def test_endless_interim_answers_are_an_error(self):
        """They would grow without a bound, a head at a time."""
        with pytest.raises(ReplicaError, match="without a body") as caught:
            read(*[b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n"] * 100)
        assert caught.value.fault is Fault.PROTOCOL

    def test_a_switch_of_protocols_is_an_error(self):
        """Nobody asked for one."""
        with pytest.raises(ReplicaError, match="not HTTP"):
            read(b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nzz")

    def test_chunk_extensions_and_trailers_are_dropped(self):
        """They are legal, and nothing to a client of ours."""
        reader, sink = read(
            b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n2;q="x"\r\nde\r\n0\r\nX-Trail: 1\r\n\r\n'
        )
        assert sink.body == b"abcde"
        assert sink.heads == [(200, [])]
        assert reader.can_reuse

    @pytest.mark.parametrize("coding", [b"gzip, chunked", b"gzip", b"deflate"])
    def test_a_transfer_coding_that_was_not_asked_for_is_an_error(self, coding):
        """Its bytes could not be read for usage, nor be passed on as they are."""
        with pytest.raises(ReplicaError, match="transfer coding"):
            read(b"HTTP/1.1 200 OK\r\ntransfer-encoding: " + coding + b"\r\n\r\n")

    @pytest.mark.parametrize(
        "raw",
        [
            b"\x16\x03\x01\x02",
            b"SSH-2.0-OpenSSH\r\n",
            b"HTTP/1.1 abc OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\nx y: 1\r\n\r\n",
        ],
    )
    def test_what_is_not_http_is_a_protocol_error(self, raw):
        """Guessing at framing is how answers get mixed up between clients."""
        with pytest.raises(ReplicaError) as caught:
            read(raw)
        assert caught.value.fault is Fault.PROTOCOL

    @pytest.mark.parametrize("num_pieces", [1, 7])
    def test_a_head_over_the_bound_is_an_error(self, num_pieces):
        """At once or in drips, complete or not."""
        raw = b"HTTP/1.1 200 OK\r\n" + b"x-a: 123456789\r\n" * 100 + b"content-length: 1\r\n\r\na"
        size = len(raw) // num_pieces + 1
        with pytest.raises(ReplicaError, match="more than 1000 bytes"):
            read(*[raw[start : start + size] for start in range(0, len(raw), size)])

    def test_one_endless_header_is_an_error(self):
        """The parser alone would keep collecting it."""
        with pytest.raises(ReplicaError, match="more than 1000 bytes"):
            read(b"HTTP/1.1 200 OK\r\nx: ", *[b"y" * 100] * 20)

    def test_endless_trailers_are_an_error(self):
        """They come after the last byte of body, where nobody looks."""
        with pytest.raises(ReplicaError, match="more than 1000 bytes"):
            read(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: ", *[b"y" * 100] * 20)

    def test_a_long_body_is_not_a_long_head(self):
        """The bound is on what is not body."""
        reader, sink = read(b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n", *[b"a" * 500] * 10)
        assert reader.is_complete
        assert len(sink.body) == 5000

    def test_a_second_answer_is_nobodys(self):
        """Bytes after the answer end the use of the connection and reach no sink."""
        answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
        for excess in (answer, b"garbage", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 2000):
            reader, sink = read(answer + excess)
            assert (len(sink.heads), sink.body) == (1, b"hi")
            assert reader.is_complete
            assert not reader.can_reuse

    @pytest.mark.parametrize(
        ("raw", "can_reuse"),
        [
            (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", True),
            (b"HTTP/1.1 204 No\r\n\r\n", True),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", False),
            (b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", False),
            (b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\nconnection: keep-alive\r\n\r\n", True),
        ],
    )
    def test_whether_the_connection_may_be_used_again(self, raw, can_reuse):
        """The engine says so, in words that depend on its version of HTTP."""
        reader, _ = read(raw)
        assert reader.is_complete
        assert reader.can_reuse is can_reuse

    @pytest.mark.parametrize(
        ("raw", "is_whole"),
        [
            (b"", False),
            (b"HTTP/1.1 200", False),
            (b"HTTP/1.1 200 OK\r\n\r\n", True),
            (b"HTTP/1.1 200 OK\r\n\r\nabc", True),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc", False),
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", False),
            (b"HTTP/1.1 100 Continue\r\n\r\n", False),
        ],
    )
    def test_what_a_clean_close_means(self, raw, is_whole):
        """It ends a body that was never framed, and cuts every other (P06)."""
        reader, _ = read(raw)
        assert reader.end_of_stream() is is_whole
        assert not reader.can_reuse

    def test_several_answers_on_one_connection(self):
        """Nothing of an answer leaks into the next."""
        reader, first = read(b"HTTP/1.1 500 No\r\nx-a: 1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n")
        second = Recorder()
        reader.begin(second)
        assert not reader.has_begun
        assert not reader.is_complete
        reader.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nb")
        assert (first.heads[0][0], first.body) == (500, b"a")
        assert (second.heads, second.body) == ([(200, [(b"content-length", b"1")])], b"b")

    def test_what_a_sink_raises_comes_out_as_it_is(self):
        """A bug in the relay must not read as a fault of the engine's."""
        sink = Recorder()
        sink.on_data = lambda _data: 1 / 0
        reader = AnswerReader(1000)
        reader.begin(sink)
        with pytest.raises(ZeroDivisionError):
            reader.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na")


EVENTS = [b'data: {"n":%d}\n\n' % number for number in range(6)] + [b"data: [DONE]\n\n"]
TEXT = b"".join(EVENTS)
RECORDED = {
    "chunked": b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS)
    + b"0\r\n\r\n",
    "length": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b"
    % (len(TEXT), TEXT),
    "until close": b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + TEXT,
    "trailers": b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n%x;e=1\r\n%b\r\n0\r\nT: 1\r\n\r\n"
    % (len(TEXT), TEXT),
}


def split(raw, cuts):
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    return [raw[start:end] for start, end in itertools.pairwise(edges) if start < end]


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(RECORDED)), cuts=st.lists(st.integers(0, 10_000), max_size=30))
def test_any_division_of_an_answer_gives_the_same(name, cuts):
    """The network divides as it likes; what is read must not depend on it (P04, P51)."""
    reader, sink = read(*split(RECORDED[name], cuts))
    assert sink.body == TEXT
    assert [status for status, _ in sink.heads] == [200]
    assert dict(sink.heads[0][1])[b"content-type"] == b"text/event-stream"
    assert reader.is_complete or reader.end_of_stream()


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_an_answer_byte_by_byte(name):
    """The worst division there is."""
    raw = RECORDED[name]
    _, sink = read(*[raw[index : index + 1] for index in range(len(raw))])
    assert sink.body == TEXT


@settings(max_examples=200, deadline=None)
@given(raw=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=4), has_line=st.booleans())
def test_any_bytes_are_an_answer_or_a_replica_error(raw, cuts, has_line):
    """No engine can make the gateway raise anything else."""
    raw = b"HTTP/1.1 200 OK\r\n" + raw if has_line else raw
    with contextlib.suppress(ReplicaError):
        read(*split(raw, cuts))


def test_headers_without_a_connection_header_lose_only_the_known_hops():
    """The usual case, in its order."""
    headers = [(b"a", b"1"), (b"upgrade", b"x"), (b"b", b"2"), (b"a", b"3")]
    assert without_hop_by_hop(headers) == [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]
