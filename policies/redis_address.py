"""A store's URL taken apart: one Redis, one under Sentinel, or a Cluster; and what of it may be shown.

`redis[s]://[user:password@]host:port/db`, `unix://path`, `redis[s]+sentinel://[user:password@]host:port,…/service/db`,
`redis[s]+cluster://[user:password@]host:port,…`. Options follow as `?name=value`, as redis-py knows them; for a login
of Sentinel's own `sentinel_username` and `sentinel_password`. Knows no connection.
"""

from dataclasses import dataclass
from enum import Enum
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from policies.store import StoreError

Place = tuple[str, int]  # host and port

REDIS_PORT, SENTINEL_PORT = 6379, 26379


class Layout(Enum):
    """How the servers stand together; the value is what the scheme adds."""

    SOLE = ""
    SENTINEL = "+sentinel"
    CLUSTER = "+cluster"


SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a store is. `name`: without login and options. `places`: of servers, or of sentinels.

    `service`: the name that Sentinel knows the primary by. `url`: as given, for a sole server only.
    """

    layout: Layout
    name: str
    url: str
    scheme: str
    login: str
    places: tuple[Place, ...]
    service: str
    db: str
    options: tuple[tuple[str, str], ...]

    def url_of(self, place: Place) -> str:
        """The URL of one server, as redis-py reads it."""
        if self.layout is Layout.SOLE:
            return self.url
        options = [pair for pair in self.options if not pair[0].startswith("sentinel_")]
        return self._url(self.login, place, f"/{self.db or 0}", options)

    def url_of_sentinel(self, place: Place) -> str:
        """The URL of one sentinel."""
        own = dict(self.options)
        user, password = own.get("sentinel_username", ""), own.get("sentinel_password", "")
        login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if password else ""
        return self._url(login, place, "", [pair for pair in self.options if pair[0].startswith("ssl_")])

    def _url(self, login: str, place: Place, path: str, options: list[tuple[str, str]]) -> str:
        host = f"[{place[0]}]" if ":" in place[0] else place[0]
        query = f"?{urlencode(options)}" if options else ""
        return f"{self.scheme}://{login}{host}:{place[1]}{path}{query}"


def parse_address(url: str) -> Address:
    """The address in a URL. Raises `StoreError` with one sentence, and nothing of the login in it."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise StoreError("the store's URL cannot be read") from error
    if parts.scheme not in SCHEMES:
        raise StoreError(f"a store of the kind {parts.scheme!r} is not supported; one of {', '.join(SCHEMES)} is")
    scheme, _, kind = parts.scheme.partition("+")
    layout = Layout(f"+{kind}" if kind else "")
    login, at, hosts = parts.netloc.rpartition("@")
    service, db = _service_and_db(layout, parts)
    places = () if scheme == "unix" else _places(hosts, layout)
    if layout is Layout.SOLE and len(places) > 1:
        raise StoreError("the store's URL names several hosts; that takes redis+sentinel:// or redis+cluster://")
    name = f"{parts.scheme}://{hosts}{parts.path}"
    return Address(layout, name, url, scheme, login + at, places, service, db, tuple(parse_qsl(parts.query)))


def _service_and_db(layout: Layout, parts: SplitResult) -> tuple[str, str]:
    names = [unquote(name) for name in parts.path.split("/") if name]
    if layout is Layout.SOLE:
        return "", ""
    if layout is Layout.CLUSTER:
        if names not in ([], ["0"]):
            raise StoreError("a Redis Cluster has no databases: leave the path of the store's URL empty")
        return "", ""
    if not names or len(names) > 2 or not all(map(str.isdigit, names[1:])):
        raise StoreError(
            "give the name that Sentinel knows the primary by, and a database if it is not 0: "
            "redis+sentinel://host:port,host:port/service/db"
        )
    return names[0], names[1] if len(names) > 1 else "0"


def _places(hosts: str, layout: Layout) -> tuple[Place, ...]:
    standard = SENTINEL_PORT if layout is Layout.SENTINEL else REDIS_PORT
    places = []
    for one in hosts.split(","):
        try:
            parts = urlsplit(f"//{one}")
            port = parts.port
        except ValueError as error:
            raise StoreError("the store's URL cannot be read") from error
        if not parts.hostname and layout is not Layout.SOLE:
            raise StoreError("the store's URL lacks a host between its commas")
        places.append((parts.hostname or "localhost", port or standard))
    return tuple(places)
