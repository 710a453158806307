"""The contract of what is kept of answers, on each store: found by its own project, bounded, and gone in the end."""
# ruff: noqa: F811  # fixtures of test_store.py are arguments here

import asyncio
from dataclasses import replace

import pytest

from policies.kept_responses import KeptBound, KeptResponse
from policies.store import StoreError
from tests.contracts.test_store import START, clock, opened, project, reopen, store  # noqa: F401  # fixtures
from tests.redis_server import redis_program, shared_redis  # noqa: F401  # fixtures

ROOM = KeptBound(number=100, total_bytes=1 << 20)


def kept(project, number=0, content=b"{}", for_s=60.0):
    """Something to keep; the ids differ by number."""
    return KeptResponse(project.id, f"resp_{number:04d}", START + for_s, content)


async def held(store, project, count):
    """The numbers of those that are there, of so many."""
    found = [await store.kept_response(project.id, f"resp_{number:04d}") for number in range(count)]
    return [number for number, content in enumerate(found) if content is not None]


@pytest.mark.parametrize("content", [b"{}", b"", bytes(range(256)), b"x" * 100_000])
async def test_what_is_kept_is_found_as_it_was(store, project, content):
    """Any bytes."""
    await store.keep_responses([kept(project, content=content)], ROOM)
    assert await store.kept_response(project.id, "resp_0000") == content


async def test_another_project_finds_nothing_and_drops_nothing(store, project):
    """An id tells nobody anything who is not of its project."""
    other = await store.create_project("other", project.organization_id)
    await store.keep_responses([kept(project)], ROOM)
    assert await store.kept_response(other.id, "resp_0000") is None
    assert not await store.drop_response(other.id, "resp_0000")
    await store.keep_responses([kept(other, content=b"other")], ROOM)
    assert await store.kept_response(project.id, "resp_0000") == b"{}"


async def test_what_is_dropped_is_gone_once(store, project):
    """The second time there is nothing to drop."""
    await store.keep_responses([kept(project), kept(project, 1)], ROOM)
    assert await store.drop_response(project.id, "resp_0000")
    assert not await store.drop_response(project.id, "resp_0000")
    assert await held(store, project, 2) == [1]


async def test_what_is_over_is_neither_found_nor_dropped(store, project, clock):
    """To the second."""
    await store.keep_responses([kept(project), kept(project, 1, for_s=120)], ROOM)
    clock.now = START + 59.0
    assert await held(store, project, 2) == [0, 1]
    clock.now = START + 60.0
    assert await held(store, project, 2) == [1]
    assert not await store.drop_response(project.id, "resp_0000")
    await store.expire_responses()
    assert await held(store, project, 2) == [1]


async def test_the_oldest_of_a_project_go_by_number(store, project):
    """Those of others stay."""
    other = await store.create_project("other", project.organization_id)
    bound = KeptBound(number=3, total_bytes=1 << 20)
    await store.keep_responses([kept(other)], bound)
    for number in range(5):
        await store.keep_responses([kept(project, number)], bound)
    assert await held(store, project, 5) == [2, 3, 4]
    assert await held(store, other, 1) == [0]


async def test_the_oldest_of_a_project_go_by_bytes(store, project):
    """What was dropped or replaced counts no more."""
    bound = KeptBound(number=10, total_bytes=1000)
    await store.keep_responses([kept(project, number, b"x" * 300) for number in range(3)], bound)
    await store.drop_response(project.id, "resp_0001")
    await store.keep_responses([kept(project, 3, b"x" * 300)], bound)
    assert await held(store, project, 4) == [0, 2, 3]
    await store.keep_responses([kept(project, 0, b"x" * 100)], bound)  # now the youngest, and shorter
    await store.keep_responses([kept(project, 4, b"x" * 300)], bound)
    assert await held(store, project, 5) == [0, 2, 3, 4]
    await store.keep_responses([kept(project, 5, b"x" * 300)], bound)
    assert await held(store, project, 6) == [0, 3, 4, 5]


async def test_what_alone_is_above_the_bound_is_not_kept(store, project):
    """And takes the others with it, as they are older."""
    await store.keep_responses([kept(project), kept(project, 1, b"x" * 2000)], KeptBound(10, 1000))
    assert await held(store, project, 2) == []
    await store.keep_responses([kept(project, 2)], KeptBound(10, 1000))
    assert await held(store, project, 3) == [2]


async def test_one_of_an_id_that_is_there_takes_its_place(store, project):
    """With its own end."""
    await store.keep_responses([kept(project)], ROOM)
    await store.keep_responses([replace(kept(project, for_s=90), content=b"new")], ROOM)
    assert await store.kept_response(project.id, "resp_0000") == b"new"


async def test_a_project_takes_them_with_it(store, project):
    """And those that come after it are passed over."""
    other = await store.create_project("other", project.organization_id)
    await store.keep_responses([kept(project), kept(other)], ROOM)
    await store.delete_project(project.id, cascade=True)
    await store.keep_responses([kept(project, 1), kept(other, 1)], ROOM)
    assert await held(store, project, 2) == []
    assert await held(store, other, 2) == [0, 1]
    await store.delete_organization(other.organization_id, cascade=True)
    assert await held(store, other, 2) == []


async def test_nothing_of_it_stands_in_the_directory_or_the_audit_log(store, project):
    """Every answer would make every gateway read all tenants again."""
    before = await store.snapshot()
    await store.keep_responses([kept(project)], ROOM)
    await store.drop_response(project.id, "resp_0000")
    assert await store.snapshot() == before


async def test_they_are_there_for_who_opens_the_store_later(reopen, store, project):
    """A restart, or another gateway."""
    await store.keep_responses([kept(project)], ROOM)
    async with opened(reopen) as again:
        assert await again.kept_response(project.id, "resp_0000") == b"{}"


async def test_many_writers_at_once_lose_nothing(store, project):
    """Each is a transaction of its own."""
    await asyncio.gather(*(store.keep_responses([kept(project, number)], ROOM) for number in range(20)))
    assert await held(store, project, 20) == list(range(20))


async def test_a_closed_store_says_so(store, project):
    """Like every other call to it."""
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.kept_response(project.id, "resp_0000")
