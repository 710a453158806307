"""One file from a URL: it goes on where it was cut off, joins nothing else to it, and follows nothing it should not."""

import hashlib
import random

import httpx
import pytest

from engines.launch.model_download import ATTEMPTS, BadUrl, Download, checked_url, download, drop, shown_url
from engines.launch.model_manifest import ModelError
from tests.engines.launch.model_server import serving

_CONTENT = b"GGUF" + random.Random(1).randbytes(3_000_000)


@pytest.fixture
def server(monkeypatch):
    """A server of three megabytes."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(_CONTENT) as running:
        yield running


class _Try:
    """Downloads into one part, with what they said and waited."""

    def __init__(self, part, url):
        self.part = part
        self.url = url
        self.pauses = []
        self.told = []
        self.rooms = []

    def work(self, *, is_hashed=False):
        return Download(
            self.url,
            self.part,
            is_hashed,
            self.rooms.append,
            lambda done, total: self.told.append((done, total)),
            self.pauses.append,
        )

    def __call__(self, **options):
        with httpx.Client(timeout=10) as client:
            download(self.work(**options), client)
        return self.part.read_bytes()


@pytest.fixture
def attempt(tmp_path, server):
    """A download from that server."""
    return _Try(tmp_path / "m.gguf.part", server.url)


def _failure(attempt, **options):
    with pytest.raises(ModelError) as caught:
        attempt(**options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def _ranges(server):
    return [headers.get("Range") for _, headers in server.requests]


def test_a_whole_file_is_fetched_and_its_progress_told(server, attempt):
    """The plain case: one request, and the last word is that all is there."""
    assert attempt() == _CONTENT
    assert attempt.told[-1] == (len(_CONTENT), len(_CONTENT))
    assert attempt.rooms == [len(_CONTENT)]
    assert attempt.pauses == []


def test_a_cut_download_goes_on_where_it_stopped(server, attempt):
    """At 90% of 40 GB nobody wants to begin again."""
    server.cuts = [1_000_000, 500_000]
    assert attempt() == _CONTENT
    assert _ranges(server) == [None, "bytes=1000000-", "bytes=1500000-"]
    assert [headers.get("If-Range") for _, headers in server.requests] == [None, '"v1"', '"v1"']
    assert attempt.rooms[-1] == len(_CONTENT) - 1_500_000
    assert attempt.pauses == [1, 2]


def test_a_later_command_goes_on_with_the_part(server, attempt):
    """The part outlives the process that fetched it, and the sentence says so."""
    server.cuts = [100_000] * ATTEMPTS
    message = _failure(attempt)
    assert "0.5 MB are kept" in message
    assert "the same command goes on from there" in message
    assert attempt() == _CONTENT
    assert _ranges(server)[-1] == "bytes=500000-"


def test_a_whole_part_is_not_fetched_again(server, attempt):
    """A process may die between the last byte and the file's name."""
    attempt()
    assert attempt() == _CONTENT
    assert len(server.requests) == 1


def test_a_file_that_changed_meanwhile_is_begun_again(server, attempt):
    """Two halves of two files would be worse than none."""
    server.cuts = [1_000_000]
    server_content = b"GGUF" + b"another" * 1000
    original = attempt.pauses.append

    def change(seconds):
        server.content, server.etag = server_content, '"v2"'
        original(seconds)

    attempt.pauses = type("Pauses", (), {"append": staticmethod(change)})()
    assert attempt() == server_content


def test_a_server_without_ranges_sends_all_again(server, attempt):
    """The part is overwritten, not lengthened."""
    server.has_ranges = False
    server.cuts = [1_000_000]
    assert attempt() == _CONTENT


@pytest.mark.parametrize("etag", ["", 'W/"weak"'])
def test_without_a_strong_validator_nothing_is_gone_on_with(server, attempt, etag):
    """Nobody could tell whether the rest belongs to the beginning."""
    server.etag = etag
    server.cuts = [1_000_000]
    assert attempt() == _CONTENT
    assert _ranges(server) == [None, None]


def test_a_known_hash_allows_to_go_on_without_a_validator(server, attempt):
    """What would come of two halves is noticed by the hash."""
    server.etag = ""
    server.cuts = [1_000_000]
    assert attempt(is_hashed=True) == _CONTENT
    assert _ranges(server) == [None, "bytes=1000000-"]


def test_a_date_is_a_validator_too(server, attempt):
    """Simple file servers give nothing else."""
    server.etag, server.last_modified = "", "Tue, 01 Dec 2026 00:00:00 GMT"
    server.cuts = [1_000_000]
    assert attempt() == _CONTENT
    assert server.requests[1][1]["If-Range"] == server.last_modified


def test_the_part_of_another_url_is_not_gone_on_with(server, attempt):
    """The name may be the same, the model is not."""
    server.cuts = [100_000] * ATTEMPTS
    _failure(attempt)
    attempt.url += "?other"
    assert attempt() == _CONTENT
    assert _ranges(server)[-1] is None


def test_a_part_without_its_description_is_begun_again(server, attempt):
    """Whatever lies there, nobody knows what it is."""
    attempt.part.write_bytes(b"GGUF and some more")
    assert attempt() == _CONTENT


@pytest.mark.parametrize("description", [b"", b"{", b"[]", b'{"url_sha256": 1}', b"\xff" * 9])
def test_a_broken_description_is_none(server, attempt, description):
    """A disk that was full may leave any of these."""
    attempt.part.write_bytes(b"GGUF and some more")
    attempt.part.with_name("m.gguf.part.json").write_bytes(description)
    assert attempt() == _CONTENT


def test_a_shorter_file_in_place_of_a_hashed_one_is_begun_again(server, attempt):
    """The server has nothing behind the end: the part is of something else."""
    server.etag = ""
    server.cuts = [1_000_000]
    _stop_after_one(attempt, is_hashed=True)
    server.content = b"GGUF" + bytes(1000)
    assert attempt(is_hashed=True) == server.content


def _stop_after_one(attempt, **options):
    def stop(_):
        raise KeyboardInterrupt

    work = attempt.work(**options)
    object.__setattr__(work, "pause", stop)
    with httpx.Client() as client, pytest.raises(KeyboardInterrupt):
        download(work, client)


def test_ctrl_c_keeps_the_part_and_says_so(server, attempt):
    """Who stops a download wants to go on with it."""

    def stop(done, _total):
        if done > 1_000_000:
            raise KeyboardInterrupt

    work = attempt.work()
    object.__setattr__(work, "tell", stop)
    with httpx.Client() as client, pytest.raises(ModelError, match=r"^stopped; .* kept in .*m\.gguf\.part"):
        download(work, client)
    assert attempt() == _CONTENT


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_passing_trouble_is_tried_again(server, attempt, status):
    """A mirror that restarts is no reason to give up."""
    server.statuses = [status] * (ATTEMPTS - 1)
    assert attempt() == _CONTENT
    assert attempt.pauses == [1, 2, 4, 8]


def test_trouble_that_does_not_pass_is_told(server, attempt):
    """The bound of attempts is reached; nothing is kept, so nothing is said of it."""
    server.statuses = [503] * ATTEMPTS
    assert _failure(attempt).endswith("cannot be fetched: the server answers 503")


@pytest.mark.parametrize("status", [401, 403, 404, 204])
def test_an_answer_that_is_no_file_is_told_at_once(server, attempt, status):
    """Asking again would not help."""
    server.statuses = [status]
    assert f"the server answers {status}" in _failure(attempt)
    assert len(server.requests) == 1


def test_what_is_no_model_is_not_fetched_to_its_end(server, attempt):
    """A login page with status 200 is the usual wrong file."""
    server.content, server.content_type = b"<html>" + bytes(9_000_000), "text/html"
    message = _failure(attempt)
    assert "is not a GGUF model" in message
    assert "text/html" in message
    assert not attempt.part.exists()
    assert not attempt.told


def test_a_file_without_a_length_is_refused(server, attempt):
    """Nobody could tell a whole one from a cut one."""
    server.has_length = False
    assert "does not say how long" in _failure(attempt)


@pytest.mark.parametrize("begun", [0, 1_000_000], ids=["from the start", "gone on with"])
def test_a_server_that_sends_more_than_it_said_fills_no_disk(server, attempt, begun):
    """Room was asked for so many bytes."""
    if begun:
        server.cuts = [begun] * ATTEMPTS
        server.has_ranges = False
        _failure(attempt)
        server.has_ranges = True
    server.surplus_bytes = 64 << 20
    assert "sends more than" in _failure(attempt)
    assert not attempt.part.exists()
    assert attempt.told[-1][0] <= len(_CONTENT)


@pytest.mark.parametrize("length", ["9" * 5000, "9" * 30, "-1", "1e3", "\u00b2"])
def test_a_length_that_cannot_be_is_told(server, attempt, length):
    """In one sentence, whatever it is."""
    server.said_length = length
    _failure(attempt)


def test_no_room_is_told_before_the_bytes(server, attempt):
    """The length is known from the first answer."""

    def full(_):
        raise ModelError("the disk is too full")

    work = attempt.work()
    object.__setattr__(work, "check_room", full)
    with httpx.Client() as client, pytest.raises(ModelError, match="too full"):
        download(work, client)
    assert not attempt.part.exists()


def test_a_part_that_cannot_be_written_is_told(server, attempt, tmp_path):
    """A folder in the way is not a traceback."""
    attempt.part = tmp_path / "missing" / "m.part"
    assert "cannot be written" in _failure(attempt)


def test_redirects_are_followed_to_a_bound(server, attempt):
    """Mirrors redirect; a ring of them ends."""
    base = server.url.rsplit("/", 1)[0]
    server.redirects = {f"/{n}": f"{base}/{n + 1}" for n in range(4)} | {"/4": "/m.gguf"}
    attempt.url = f"{base}/0"
    assert attempt() == _CONTENT
    server.redirects = {"/0": "/0"}
    attempt.url = f"{base}/0?again"
    server.redirects["/0?again"] = "/0"
    assert "redirects more than 5 times" in _failure(attempt)


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/m", "http://192.0.2.1/m", "gopher://x/"])
def test_redirects_lead_nowhere_else(server, attempt, target):
    """A server must not make us read this machine's files, or trust the open network."""
    server.redirects = {"/m.gguf": target}
    assert "redirects to where nothing is fetched from" in _failure(attempt)


def test_https_is_not_left_for_http(tmp_path):
    """Not even with a hash: the path and any token in it would be shown to everybody."""
    transport = httpx.MockTransport(lambda request: httpx.Response(302, headers={"location": "http://b.example/m"}))
    work = _Try(tmp_path / "p", "https://a.example/m").work(is_hashed=True)
    with httpx.Client(transport=transport) as client, pytest.raises(ModelError, match="from https to http"):
        download(work, client)


def test_a_password_goes_to_its_own_host_alone(tmp_path):
    """A redirect to a store elsewhere must not carry it on; one on the same host keeps it."""
    seen = []

    def answer(request):
        seen.append((request.url.host, "authorization" in request.headers))
        targets = {"/m": "/n", "/n": "https://b.example/m"}
        if request.url.host == "a.example":
            return httpx.Response(302, headers={"location": targets[request.url.path]})
        return httpx.Response(200, headers={"content-length": str(len(_CONTENT))}, stream=httpx.ByteStream(_CONTENT))

    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        download(_Try(tmp_path / "p", "https://me:secret@a.example/m").work(), client)
    assert seen == [("a.example", True), ("a.example", True), ("b.example", False)]


@pytest.mark.parametrize(
    "url", ["file:///m.gguf", "ftp://a/m", "https://", "http://models.example/m", "http://10.0.0.1/m"]
)
def test_urls_that_nothing_is_fetched_from(url):
    """Known before anything is asked."""
    with pytest.raises(BadUrl):
        checked_url(url, is_hashed=False)


@pytest.mark.parametrize("url", ["https://a.example/m", "http://localhost:8/m", "http://127.0.0.1/m", "http://[::1]/m"])
def test_urls_that_may_be_fetched_from(url):
    """https, and this machine."""
    assert checked_url(url, is_hashed=False) == url


def test_plain_http_needs_a_hash():
    """With one it does not matter who stands on the way."""
    assert checked_url("http://models.example/m", is_hashed=True)


def test_secrets_of_a_url_are_not_shown():
    """It is written to a manifest and to terminals."""
    assert shown_url("https://me:secret@a.example:8443/m.gguf?sig=secret#x") == "https://a.example:8443/m.gguf"


def test_a_dropped_part_may_be_dropped_again(server, attempt):
    """The end of a download is the same however often it comes."""
    attempt()
    for _ in range(2):
        drop(attempt.work())
    assert not attempt.part.exists()


def test_the_servers_hash_is_ours(server, attempt):
    """The content is whole over several pieces, by its hash."""
    server.cuts = [7, 1_048_576, 1]
    assert hashlib.sha256(attempt()).digest() == hashlib.sha256(_CONTENT).digest()


def test_an_unreachable_server_is_told(tmp_path, monkeypatch):
    """Connection refused, five times."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    attempt = _Try(tmp_path / "p", "http://127.0.0.1:9/m.gguf")
    assert "cannot be fetched" in _failure(attempt)
    assert len(attempt.pauses) == ATTEMPTS - 1
    assert not list(tmp_path.iterdir())
