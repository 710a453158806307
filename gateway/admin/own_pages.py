"""Pages of a list with nothing in them but what the caller may see, in the store's own order."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from gateway.admin.endpoints import PageRequest
from gateway.errors import ClientError
from policies.store import MAX_PAGE, Page, UnknownId


class HasId(Protocol):
    """An organisation, project or key."""

    @property
    def id(self) -> str:
        """Its place in the list."""
        ...


T = TypeVar("T", bound=HasId)
Fetch = Callable[[int, str | None], Awaitable[Page[T]]]  # (limit, after)


async def own_page(
    wanted: PageRequest,
    fetch: Fetch[T],
    find: Callable[[str], Awaitable[T]],
    is_own: Callable[[T], bool] | None,
) -> Page[T]:
    """The next items that are the caller's. `is_own`: None for who may see all. `find`: raises `UnknownId`.

    Raises `ClientError` for an `after` that is not in the caller's list.
    """
    try:
        if is_own is None:
            return await fetch(wanted.limit, wanted.after)
        foreign = None if wanted.after is None or is_own(found := await find(wanted.after)) else found
    except UnknownId as error:
        raise unknown("after", error) from error
    if foreign is not None:
        raise unknown("after", UnknownId(type(foreign).__name__.lower(), foreign.id))
    items: list[T] = []
    after = wanted.after
    while True:
        page = await fetch(MAX_PAGE, after)
        items += filter(is_own, page.items)
        if len(items) > wanted.limit:
            return Page(tuple(items[: wanted.limit]), items[wanted.limit - 1].id)
        if page.next_after is None:
            return Page(tuple(items), None)
        after = page.next_after


def unknown(param: str, error: UnknownId) -> ClientError:
    """A 400 for something in the query or the body that there is not, or not for this caller."""
    return ClientError(str(error), param=param, code=f"unknown_{error.kind}")
