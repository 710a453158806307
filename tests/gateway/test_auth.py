"""The directory: it follows the store, lets nobody in by accident, and says nothing of what was sent."""

import asyncio
import sqlite3

import pytest
import structlog

from gateway.auth import AuthFailure, AuthFailureKind, Directory
from policies.lane import Lane
from policies.meters import Moment
from policies.quota import Quotas, Rejected
from policies.sqlite_store import SqliteStore
from policies.store import Level, NewKey, StoreError
from policies.tenant import Principal, Role

START = 1_700_000_000.0


@pytest.fixture
async def store(tmp_path):
    async with await SqliteStore.open(tmp_path / "store.sqlite3", lambda: START) as opened:
        yield opened


@pytest.fixture
async def project(store):
    return await store.create_project("chat", (await store.create_organization("acme")).id)


@pytest.fixture
async def directory(store):
    made = Directory(store)
    await made.refresh()
    return made


class FlakyStore:
    """A store that fails while it is told to."""

    def __init__(self, inner: SqliteStore) -> None:
        self._inner = inner
        self.is_down = False
        self.num_asked = 0
        self.asked = asyncio.Event()
        self.news = asyncio.Queue()

    async def revision(self) -> int:
        self.num_asked += 1
        self.asked.set()
        if self.is_down:
            raise StoreError("the disk is gone")
        return await self._inner.revision()

    async def snapshot(self):
        return await self._inner.snapshot()

    async def changes(self):
        while True:
            yield await self.news.get()

    async def until_asked(self, times: int = 1) -> None:
        for _ in range(times):
            self.asked.clear()
            await self.asked.wait()


def bearer(secret: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {secret}".encode())]


def failure(outcome) -> AuthFailureKind:
    assert isinstance(outcome, AuthFailure), outcome
    return outcome.kind


async def test_nobody_is_let_in_before_the_first_refresh(store, project):
    """An empty directory is closed, not open."""
    _, secret = await store.create_key(NewKey(project.id, "laptop"))
    assert failure(Directory(store).authenticate(bearer(secret.text), START)) is AuthFailureKind.UNKNOWN


async def test_gateways_of_one_store_know_each_other_by_its_secret(store, project, tmp_path):
    """Gossip rests on the secret that salts prompts: another store's gateways are strangers."""
    one, same = Directory(store), Directory(store)
    assert one.installation == 0
    await one.refresh()
    await same.refresh()
    async with await SqliteStore.open(tmp_path / "other.sqlite3", lambda: START) as elsewhere:
        stranger = Directory(elsewhere)
        await stranger.refresh()
    assert one.installation == same.installation != stranger.installation
    assert one.installation


async def test_a_new_key_is_let_in_after_a_refresh(store, project, directory):
    """A refresh brings what was written before it."""
    key, secret = await store.create_key(NewKey(project.id, "laptop"))
    assert await directory.refresh()
    principal = directory.authenticate(bearer(secret.text), START)
    assert isinstance(principal, Principal)
    assert (principal.key_id, principal.tenant.project_id) == (key.id, project.id)
    assert directory.authenticate([(b"x-api-key", secret.text.encode())], START) == principal
    assert repr(directory) == f"<Directory revision={await store.revision()} keys=1>"


async def test_a_refresh_without_a_change_reads_no_snapshot(store, directory):
    """The poll must stay cheap."""
    assert not await directory.refresh()
    assert directory.revision == await store.revision()


async def test_unknown_and_revoked_look_alike(store, project, directory):
    """P41: nobody may learn that a key once existed."""
    key, secret = await store.create_key(NewKey(project.id, "laptop"))
    await store.revoke_key(key.id)
    await directory.refresh()
    revoked = directory.authenticate(bearer(secret.text), START)
    unknown = directory.authenticate(bearer("wl-00000000-" + "x" * 43), START)
    assert revoked == unknown
    assert failure(revoked) is AuthFailureKind.UNKNOWN


async def test_a_key_expires_at_its_second_without_a_refresh(store, project, directory):
    """Expiry is checked at every use, so no poll can be late for it."""
    _, secret = await store.create_key(NewKey(project.id, "laptop", expires_at=int(START) + 10))
    await directory.refresh()
    assert isinstance(directory.authenticate(bearer(secret.text), START + 9.99), Principal)
    assert failure(directory.authenticate(bearer(secret.text), START + 10)) is AuthFailureKind.EXPIRED


async def test_a_rotated_secret_works_for_its_overlap_only(store, project, directory):
    """Both secrets open the same key during the overlap, and one after it."""
    key, old = await store.create_key(NewKey(project.id, "laptop"))
    _, new = await store.rotate_key(key.id, overlap_s=60)
    await directory.refresh()
    assert {directory.authenticate(bearer(one.text), START).key_id for one in (old, new)} == {key.id}
    assert failure(directory.authenticate(bearer(old.text), START + 60)) is AuthFailureKind.EXPIRED
    assert isinstance(directory.authenticate(bearer(new.text), START + 60), Principal)


async def test_no_answer_and_no_log_holds_a_part_of_the_key(store, project, directory):
    """P41: wrong, expired, revoked, malformed: neither body nor log may hold six characters of the secret."""
    revoked, revoked_secret = await store.create_key(NewKey(project.id, "a"))
    _, expired_secret = await store.create_key(NewKey(project.id, "b", expires_at=int(START) + 1))
    await store.revoke_key(revoked.id)
    with structlog.testing.capture_logs() as logs:
        await directory.refresh()
        sent = [revoked_secret.text, expired_secret.text, "wl-" + "s3cr3tpart" * 4, "s3cr3tpart" * 1000]
        headers = [
            *(bearer(one) for one in sent),
            *(bearer(one + "\n") for one in sent),
            *([(b"authorization", b"basic " + one.encode())] for one in sent),
            *(bearer(one) + bearer(one) for one in sent),
            *([*bearer(one), (b"x-api-key", b"other")] for one in sent),
            [],
        ]
        outcomes = [directory.authenticate(one, START + 5) for one in headers]
    told = "".join(outcome.message + outcome.code + repr(outcome) for outcome in outcomes) + repr(logs)
    for one in sent:
        hidden = one[-40:]
        assert not any(hidden[start : start + 6] in told for start in range(len(hidden) - 5))
    assert {failure(one) for one in outcomes} == set(AuthFailureKind)


async def test_every_failure_has_a_text_and_a_code():
    """A closed set, each with a sentence that says what to do."""
    failures = [AuthFailure(kind) for kind in AuthFailureKind]
    assert len({one.message for one in failures}) == len(AuthFailureKind)
    assert {one.code for one in failures} == {"missing_api_key", "invalid_api_key"}


async def test_a_changed_limit_reaches_the_next_request(store, project, directory):
    """P14: the limits come with the tenant at every call."""
    _, secret = await store.create_key(NewKey(project.id, "laptop"))
    await store.set_limits(Level.PROJECT, project.id, b'{"rpm":7,"concurrency":{"bulk":2}}')
    await directory.refresh()
    limits = directory.authenticate(bearer(secret.text), START).tenant.limits
    assert (limits.rpm, limits.concurrency) == (7, {Lane.BULK: 2})


async def test_nan_written_straight_into_the_store_refuses_requests(tmp_path, store, project, directory):
    """P15: a stored bad value closes the limit and is reported; the rest of the directory goes on."""
    _, secret = await store.create_key(NewKey(project.id, "laptop"))
    with sqlite3.connect(tmp_path / "store.sqlite3") as connection:
        connection.execute("""UPDATE projects SET limits = '{"rpm": NaN}'""")
    connection.close()
    with structlog.testing.capture_logs() as logs:
        await directory.refresh()
    principal = directory.authenticate(bearer(secret.text), START)
    assert isinstance(Quotas().reserve(principal.tenant, Lane.INTERACTIVE, Moment(1.0, 1.0)), Rejected)
    assert [(log["event"], log["subject"]) for log in logs] == [("directory.limits_unusable", project.id)]


async def test_a_store_that_fails_leaves_the_last_directory_in_force(store, project):
    """An unreadable store must not shut everybody out, and is logged once, not at every poll."""
    _, secret = await store.create_key(NewKey(project.id, "laptop"))
    flaky = FlakyStore(store)
    directory = Directory(flaky)
    await directory.refresh()
    flaky.is_down = True
    with pytest.raises(StoreError):
        await directory.refresh()
    with structlog.testing.capture_logs() as logs:
        following = asyncio.create_task(directory.follow(poll_s=0.001))
        await flaky.until_asked(4)
        flaky.is_down = False
        await flaky.until_asked(2)
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
    assert isinstance(directory.authenticate(bearer(secret.text), START), Principal)
    assert [log["event"] for log in logs] == ["directory.refresh_failed", "directory.refresh_recovered"]


async def test_following_brings_a_revocation_without_a_nudge(store, project):
    """Another process's change arrives within a poll."""
    key, secret = await store.create_key(NewKey(project.id, "laptop"))
    flaky = FlakyStore(store)
    directory = Directory(flaky)
    following = asyncio.create_task(directory.follow(poll_s=0.001))
    await flaky.until_asked(2)
    assert isinstance(directory.authenticate(bearer(secret.text), START), Principal)
    await store.revoke_key(key.id)
    await flaky.until_asked(2)
    assert failure(directory.authenticate(bearer(secret.text), START)) is AuthFailureKind.UNKNOWN
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following


async def test_news_of_the_store_bring_a_revocation_long_before_the_poll(store, project):
    """Another machine's admin plane cannot nudge this gateway; Redis tells it."""
    key, secret = await store.create_key(NewKey(project.id, "laptop"))
    telling, changed = FlakyStore(store), asyncio.Event()
    directory = Directory(telling, changed.set)
    following = asyncio.create_task(directory.follow(poll_s=3600.0))
    async with asyncio.timeout(10):
        await changed.wait()
        changed.clear()
        await store.revoke_key(key.id)
        for _ in range(3):  # at once, they make one refresh more, or two
            telling.news.put_nowait(None)
        await changed.wait()
    assert failure(directory.authenticate(bearer(secret.text), START)) is AuthFailureKind.UNKNOWN
    assert telling.num_asked <= 3
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following


async def test_refreshes_that_overlap_never_bring_back_the_past(store, project, directory):
    """A nudge during a poll must end with the newest directory in force."""
    key, secret = await store.create_key(NewKey(project.id, "laptop"))
    await asyncio.gather(directory.refresh(), directory.refresh())
    revoking = store.revoke_key(key.id)
    await asyncio.gather(directory.refresh(), revoking)
    await asyncio.gather(*(directory.refresh() for _ in range(5)))
    assert failure(directory.authenticate(bearer(secret.text), START)) is AuthFailureKind.UNKNOWN


async def test_a_cancelled_refresh_leaves_the_directory_usable(store, project, directory):
    """A nudge whose caller left must not hold the lock."""
    _, secret = await store.create_key(NewKey(project.id, "laptop"))
    nudge = asyncio.create_task(directory.refresh())
    await asyncio.sleep(0)
    nudge.cancel()
    with pytest.raises(asyncio.CancelledError):
        await nudge
    await directory.refresh()
    assert isinstance(directory.authenticate(bearer(secret.text), START), Principal)


async def test_the_age_of_the_directory_is_told(store):
    """An operator must be able to see that a directory has stopped following."""
    directory = Directory(store)
    assert directory.age_s(0.0) == float("inf")
    await directory.refresh()
    assert directory.age_s(asyncio.get_running_loop().time()) < 60


async def test_a_change_is_announced_once_it_is_in_force(store, project):
    """Whoever waits under the old limits is told then, and not at every look at the store."""
    told = []
    directory = Directory(store, lambda: told.append(directory.tenant(project.id)))
    await directory.refresh()
    assert told == [None], "a project without a key calls nobody"
    await store.create_key(NewKey(project_id=project.id, name="k"))
    await directory.refresh()
    await store.set_limits(Level.PROJECT, project.id, b'{"batch_cap": {"bulk": 2}, "weight": 4}')
    await directory.refresh()
    await directory.refresh()
    assert len(told) == 3
    assert (told[2].limits.batch_cap, told[2].limits.weight) == ({Lane.BULK: 2}, 4.0)


async def test_projects_that_are_gone_are_told_once(store, project):
    """So that what is remembered of them can be dropped; the first look has nothing to compare with."""
    deleted = []
    directory = Directory(store, on_deleted=deleted.append)
    await directory.refresh()
    _, secret = await store.create_key(NewKey(project.id, "laptop"))
    await directory.refresh()
    assert deleted == []
    await store.delete_project(project.id, cascade=True)
    await directory.refresh()
    await directory.refresh()
    assert deleted == [frozenset({project.id})]
    assert failure(directory.authenticate(bearer(secret.text), START)) is AuthFailureKind.UNKNOWN


async def test_a_key_that_has_no_service_role_is_nobody_on_the_data_plane(store, project):
    """An administrator's key opens the admin plane alone, unless it was given both."""
    _, admin = await store.create_key(NewKey(project.id, "admin", frozenset({Role.PROJECT_ADMIN})))
    _, both = await store.create_key(NewKey(project.id, "both", frozenset({Role.PROJECT_ADMIN, Role.SERVICE})))
    directory = Directory(store)
    await directory.refresh()
    assert failure(directory.authenticate(bearer(admin.text), START)) is AuthFailureKind.UNKNOWN
    assert directory.authenticate(bearer(both.text), START).key_name == "both"
