"""One file from an operator's URL: it goes on where it stopped, and only with the file that was begun.

https alone, plain http only from this machine or with a hash to check against; redirects are bounded and never lead to
http. The part lies beside what is known of it (`.part.json`: a hash of the URL, the server's validator, the size).
"""

import contextlib
import hashlib
import ipaddress
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from engines.launch.model_manifest import ModelError
from engines.launch.model_progress import Tell

ATTEMPTS = 5  # chosen: with pauses of 1, 2, 4 and 8 s between them
_MAX_REDIRECTS = 5
TIMEOUT_S = 30  # chosen: of connecting and of silence
_MAGIC = b"GGUF"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


class BadUrl(ValueError):
    """A URL that nothing is fetched from; the message says why."""


class _TryAgain(Exception):
    """One attempt is lost, another may succeed; the message says what happened."""


class _PartInfo(msgspec.Struct, frozen=True):
    """What the part is a part of. `validator`: a strong ETag or a Last-Modified, empty if the server gave none."""

    url_sha256: str
    total_bytes: int
    validator: str = ""


@dataclass(frozen=True, slots=True)
class Download:
    """What to fetch, into `part`. `is_hashed`: the whole will be checked against a known SHA-256.

    `check_room` is asked for the bytes still to come and raises `ModelError`; `pause` waits so many seconds.
    """

    url: str
    part: Path
    is_hashed: bool
    check_room: Callable[[int], None]
    tell: Tell
    pause: Callable[[float], None]

    @property
    def info(self) -> Path:
        """Where it is kept what the part is a part of."""
        return self.part.with_name(f"{self.part.name}.json")

    @property
    def shown(self) -> str:
        """The URL without what may be secret in it."""
        return shown_url(self.url)


def checked_url(url: str, *, is_hashed: bool) -> str:
    """The URL, if a model may be fetched from it. Raises `BadUrl`."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise BadUrl(f"the URL cannot be read: {error}") from error
    if parsed.scheme not in ("https", "http") or not parsed.host:
        raise BadUrl(f"a model is fetched by https, not from {parsed.scheme or 'a URL without a scheme'}:")
    if parsed.scheme == "http" and not is_hashed and not _is_here(parsed.host):
        raise BadUrl("anybody on the way can change what comes by http; use https, or give --sha256")
    return url


def shown_url(url: str) -> str:
    """The URL without user, password, query and fragment, which may be secrets."""
    parsed = httpx.URL(url)
    return str(parsed.copy_with(username=None, password=None, query=None, fragment=None))


def download(work: Download, client: httpx.Client) -> None:
    """Fetch the whole file into `work.part`. Raises `ModelError`, whose sentence tells of a part that is kept."""
    for attempt in range(ATTEMPTS):
        try:
            return _fetch(work, client)
        except (_TryAgain, httpx.TransportError) as error:
            why = str(error).strip().rstrip(".") or type(error).__name__
            if attempt + 1 == ATTEMPTS:
                raise ModelError(f"{work.shown} cannot be fetched: {why}{_kept(work)}") from error
            work.pause(2**attempt)
        except OSError as error:
            raise ModelError(f"{work.part} cannot be written: {error.strerror or error}{_kept(work)}") from error
        except KeyboardInterrupt as stopped:
            raise ModelError(f"stopped{_kept(work)}") from stopped
    raise AssertionError("the last attempt returns or raises")


def drop(work: Download) -> None:
    """Forget the part."""
    work.part.unlink(missing_ok=True)
    work.info.unlink(missing_ok=True)


def _kept(work: Download) -> str:
    """What the next try begins with, for the end of a sentence."""
    size = work.part.stat().st_size if work.part.is_file() else 0
    if not size or _known(work) is None:
        return ""
    return f"; {size / 1e6:.1f} MB are kept in {work.part}, and the same command goes on from there"


def _known(work: Download) -> _PartInfo | None:
    """What the part is, if it can be gone on with."""
    try:
        info = msgspec.json.decode(work.info.read_bytes(), type=_PartInfo)
        size = work.part.stat().st_size
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    is_same = info.url_sha256 == _digest(work.url) and size <= info.total_bytes
    return info if is_same and (info.validator or work.is_hashed) else None


def _fetch(work: Download, client: httpx.Client) -> None:
    known = _known(work)
    if known is None:
        drop(work)
    have = work.part.stat().st_size if known is not None else 0
    if known is not None and have == known.total_bytes:
        return
    headers = {"accept-encoding": "identity"}
    if have and known is not None:
        headers["range"] = f"bytes={have}-"
        if known.validator:
            headers["if-range"] = known.validator
    with _opened(client, work, headers) as response:
        have, total = _begins(work, response, have)
        if have and known is not None and total != known.total_bytes:
            drop(work)
            raise _TryAgain("the server has another file than the one that was begun")
        work.check_room(total - have)
        old = known.validator if have and known is not None else ""
        info = _PartInfo(_digest(work.url), total, _validator(response) or old)
        work.info.write_bytes(msgspec.json.encode(info))
        _receive(work, response, have, total)


@contextlib.contextmanager
def _opened(client: httpx.Client, work: Download, headers: dict[str, str]) -> Iterator[httpx.Response]:
    """The answer at the end of the redirects."""
    url = httpx.URL(work.url)
    for _ in range(_MAX_REDIRECTS + 1):
        with client.stream("GET", url, headers=headers, follow_redirects=False) as response:
            if response.status_code not in _REDIRECTS:
                yield response
                return
            url = _redirected(work, url, response.headers.get("location", ""))
    raise ModelError(f"{work.shown} redirects more than {_MAX_REDIRECTS} times")


def _redirected(work: Download, url: httpx.URL, location: str) -> httpx.URL:
    try:
        target = url.join(location)
        checked_url(str(target), is_hashed=work.is_hashed)
    except (httpx.InvalidURL, ValueError) as error:  # BadUrl is one
        raise ModelError(f"{work.shown} redirects to where nothing is fetched from: {error}") from error
    if url.scheme == "https" and target.scheme != "https":
        raise ModelError(f"{work.shown} redirects from https to {target.scheme}, which is not followed")
    if (url.scheme, url.host, url.port) == (target.scheme, target.host, target.port) and not target.userinfo:
        return target.copy_with(username=url.username or None, password=url.password or None)
    return target


def _begins(work: Download, response: httpx.Response, have: int) -> tuple[int, int]:
    """Where in the file the answer's body begins, and how long the file is. The part is dropped where it is useless."""
    status = response.status_code
    if status == 206:
        start, total = _content_range(response.headers.get("content-range", ""))
        if start != have:
            drop(work)
            raise _TryAgain("the server sent another piece than it was asked for")
        return have, total
    if status == 416 and have:
        drop(work)
        raise _TryAgain("the server has another file than the one that was begun")
    if status in _PASSING:
        raise _TryAgain(f"the server answers {status}")
    if status != 200:
        raise ModelError(f"{work.shown} cannot be fetched: the server answers {status}")
    length = response.headers.get("content-length", "")
    if response.headers.get("content-encoding", "identity") != "identity" or not length.isdecimal():
        raise ModelError(
            f"{work.shown} does not say how long the file is, so nobody could tell a whole one; fetch it by other "
            "means and add the file"
        )
    return 0, int(length)


def _content_range(header: str) -> tuple[int, int]:
    unit, _, rest = header.partition(" ")
    span, _, total = rest.partition("/")
    start = span.partition("-")[0]
    if unit != "bytes" or not start.isdecimal() or not total.isdecimal():
        raise ModelError(f"the server answers with a piece that it does not describe ({header[:60]!r})")
    return int(start), int(total)


def _validator(response: httpx.Response) -> str:
    """What proves later that the file is still the same: weak ETags do not."""
    etag: str = response.headers.get("etag", "")
    modified: str = response.headers.get("last-modified", "")
    return etag if etag.startswith('"') else modified


def _receive(work: Download, response: httpx.Response, have: int, total: int) -> None:
    """Write the body behind the first `have` bytes of the part."""
    with work.part.open("r+b" if have else "wb") as file:
        file.truncate(have)
        file.seek(have)
        for chunk in response.iter_raw():  # no chunk size: what a cut leaves in that buffer is lost
            if have + len(chunk) > total:  # room was asked for so many bytes, and what follows could be endless
                drop(work)
                raise ModelError(
                    f"{work.shown} cannot be fetched: the server sends more than the {total} bytes it said"
                )
            file.write(chunk)
            if have < len(_MAGIC):
                file.flush()
                _check_magic(work, response, file.tell())
            have += len(chunk)
            work.tell(have, total)
        file.flush()
        os.fsync(file.fileno())
    if have != total:
        raise _TryAgain(f"the connection ended after {have} of {total} bytes")


def _check_magic(work: Download, response: httpx.Response, num_bytes: int) -> None:
    """Raises `ModelError` as soon as the file cannot be a model: nobody waits for 4 GB of something else."""
    with work.part.open("rb") as file:
        start = file.read(len(_MAGIC))
    if num_bytes >= len(_MAGIC) and start != _MAGIC:
        kind = response.headers.get("content-type", "no content type")[:60]
        drop(work)
        raise ModelError(f"{work.shown} is not a GGUF model: it begins with {start!r} ({kind})")


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()
