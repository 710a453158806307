"""The audit log of every store: each change is there once, with what was before and after, and never a secret."""

import json
from dataclasses import replace

import pytest

from policies import redis_audit
from policies.audit import SYSTEM, ActorKind, AuditKeep, AuditWanted, Author, Change
from policies.lane import Lane
from policies.redis_store import RedisStore
from policies.sqlite_store import SqliteStore
from policies.store import Level, NewKey, NotEmpty, UnknownId
from policies.tenant import Role
from tests.contracts.test_store import Clock, clock, opened, reopen, store  # noqa: F401  # fixtures
from tests.redis_server import redis_program, shared_redis  # noqa: F401  # fixtures

ADA = Author(ActorKind.PERSON, "ada", "adm_1")
ALL = AuditWanted()


@pytest.fixture
def short(request, tmp_path, clock):  # noqa: F811
    """Opens a store of either kind that keeps no more than this."""

    async def open_one(kind, keep):
        if kind == "sqlite":
            return await SqliteStore.open(tmp_path / "short.sqlite3", clock, keep=keep)
        server = request.getfixturevalue("shared_redis")
        return await RedisStore.open(server.url, clock, prefix=f"audit{id(keep)}", keep=keep)

    return open_one


async def log_of(store, wanted=ALL):  # noqa: F811
    """(action, subject, before, after) of every entry, the oldest first."""
    found = (await store.audit(wanted)).items
    return [
        (
            one.change.action,
            one.change.subject_id,
            *(None if x is None else json.loads(x) for x in (one.change.before, one.change.after)),
        )
        for one in reversed(found)
    ]


async def test_every_change_is_written_with_who_when_before_and_after(store, clock):  # noqa: F811
    """The log alone tells how things came to be as they are."""
    org = await store.create_organization("acme", by=ADA)
    project = await store.create_project("chat", org.id, by=ADA)
    new = NewKey(project.id, "laptop", frozenset({Role.SERVICE, Role.VIEWER}), Lane.BULK)
    key, first = await store.create_key(new, by=ADA)
    clock.now += 10
    await store.set_limits(Level.ORGANIZATION, org.id, b'{"rpm": 5}', by=ADA)
    await store.set_limits(Level.PROJECT, project.id, b'{"rpm": 3}', by=ADA)
    _, second = await store.rotate_key(key.id, 60, by=ADA)
    await store.revoke_key(key.id, by=ADA)
    await store.revoke_key(key.id, by=ADA)  # changes nothing, so it is not told
    found = await log_of(store)
    assert [one[:2] for one in found] == [
        ("organization.created", org.id), ("project.created", project.id), ("key.created", key.id),
        ("limits.set", org.id), ("limits.set", project.id), ("key.rotated", key.id), ("key.revoked", key.id),
    ]  # fmt: skip
    shown = {"id": key.id, "project_id": project.id, "name": "laptop", "prefix": key.prefix, "roles": ["service", "viewer"],
             "max_lane": "bulk", "default_lane": None, "created_at": key.created_at, "expires_at": None, "revoked_at": None}  # fmt: skip
    assert found[2][2:] == (None, shown)
    assert found[3][2:] == ({}, {"rpm": 5})
    assert found[5][3] == shown | {"old_secrets_end_at": int(clock.now) + 60}
    assert found[6][2:] == (shown, shown | {"revoked_at": int(clock.now)})
    entries = (await store.audit(ALL)).items
    assert {one.author for one in entries} == {ADA}
    assert {one.change.organization_id for one in entries} == {org.id}
    assert [one.at for one in entries] == [clock.now] * 4 + [clock.now - 10] * 3
    for secret in (first, second):
        assert secret.text not in repr(entries)
        assert secret.digest.hex() not in repr(entries)
        assert repr(secret.digest) not in repr(entries)


async def test_what_failed_leaves_no_entry(store):  # noqa: F811
    """The entry is part of the change's own transaction."""
    with pytest.raises(UnknownId):
        await store.create_project("chat", "org_none", by=ADA)
    with pytest.raises(UnknownId):
        await store.set_limits(Level.PROJECT, "proj_none", b"{}", by=ADA)
    assert await log_of(store) == []


async def test_the_log_is_paged_from_the_newest_and_filtered(store):  # noqa: F811
    """Every filter by itself, and a cursor that goes on where the page ended."""
    one, two = [await store.create_organization(name, by=ADA) for name in "ab"]
    project = await store.create_project("chat", two.id, by=replace(ADA, subject="bob", request_id="adm_2"))
    await store.note_change(Change("replica.drained", "w-1", after=b"{}"), by=Author(ActorKind.ADMIN_TOKEN))
    first = await store.audit(ALL, limit=3)
    assert [entry.change.subject_id for entry in first.items] == ["w-1", project.id, two.id]
    rest = await store.audit(ALL, limit=3, after=first.next_after)
    assert [entry.change.subject_id for entry in rest.items] == [one.id]
    assert rest.next_after is None

    async def subjects(**wanted):
        return [entry.change.subject_id for entry in (await store.audit(AuditWanted(**wanted))).items]

    assert await subjects(actor="bob") == [project.id]
    assert await subjects(actor="admin_token") == ["w-1"]
    assert await subjects(action="organization.created") == [two.id, one.id]
    assert await subjects(organization_id=two.id) == [project.id, two.id]
    assert await subjects(project_id=project.id) == [project.id]
    assert await subjects(request_id="adm_2") == [project.id]
    assert await subjects(subject_id=one.id) == [one.id]
    at = first.items[0].at
    assert await subjects(starts_at=at + 1) == []
    assert await subjects(ends_at=at) == []
    assert len(await subjects(starts_at=at, ends_at=at + 1)) == 4
    for cursor in ("x", "", "-1", "1 OR 1=1", "٣", "9" * 40):
        with pytest.raises(ValueError, match="position"):
            await store.audit(ALL, after=cursor)


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_no_more_entries_are_kept_than_the_bound(short, kind):
    """The oldest goes with the next change."""
    async with opened(lambda: short(kind, AuditKeep(entries=3))) as one:
        for number in range(8):
            await one.create_organization(f"o{number}")
        names = [entry[3]["name"] for entry in await log_of(one)]
    assert names == ["o5", "o6", "o7"]


async def test_entries_are_kept_for_so_many_days(short, clock):  # noqa: F811
    """In SQLite by our clock; Redis names its entries by its own."""
    async with opened(lambda: short("sqlite", AuditKeep(days=2))) as one:
        await one.create_organization("old")
        clock.now += 3 * 86400
        await one.create_organization("new")
        assert [entry[3]["name"] for entry in await log_of(one)] == ["new"]


async def test_redis_forgets_what_is_too_old_by_its_own_clock(short, clock):  # noqa: F811
    """A clock of ours that is far ahead makes all that is there old."""
    async with opened(lambda: short("redis", AuditKeep(days=1))) as one:
        await one.create_organization("old")
        clock.now = 4_000_000_000
        await one.create_organization("new")
        assert await log_of(one) == []


async def test_a_project_is_deleted_only_empty_or_with_its_keys(store):  # noqa: F811
    """Nobody deletes by mistake what is in use; what is deleted opens nothing and is not found."""
    org = await store.create_organization("acme")
    project, other = [await store.create_project(name, org.id) for name in ("chat", "other")]
    key, secret = await store.create_key(NewKey(project.id, "laptop"))
    kept, kept_secret = await store.create_key(NewKey(other.id, "kept"))
    dead, _ = await store.create_key(NewKey(project.id, "dead"))
    await store.revoke_key(dead.id)
    before = await store.revision()
    with pytest.raises(NotEmpty):
        await store.delete_project(project.id, cascade=False, by=ADA)
    assert await store.revision() == before
    assert (await store.opened_by(secret.digest)).key == key
    deleted = await store.delete_project(project.id, cascade=True, by=ADA)
    assert (deleted.projects, deleted.keys) == ((project.id,), (key.id,))
    assert await store.revision() > before
    assert await store.opened_by(secret.digest) is None
    assert (await store.opened_by(kept_secret.digest)).project == other
    for gone in (
        store.key(key.id),
        store.key(dead.id),
        store.project(project.id),
        store.delete_project(project.id, cascade=True),
    ):
        with pytest.raises(UnknownId):
            await gone
    assert (await store.projects(organization_id=org.id)).items == (other,)
    assert (await store.keys(project_id=project.id)).items == ()
    snapshot = await store.snapshot()
    assert [one.id for one in snapshot.keys] == [kept.id]
    assert [one.key_id for one in snapshot.digests] == [kept.id]
    told = await log_of(store, AuditWanted(actor="ada"))
    assert [one[:2] for one in told] == [("key.deleted", key.id), ("project.deleted", project.id)]
    assert told[1][2]["limits"] == {}


async def test_a_project_whose_keys_are_all_revoked_is_empty(store):  # noqa: F811
    """Revoked keys are kept for the log's readers, and are no reason to refuse."""
    org = await store.create_organization("acme")
    project = await store.create_project("chat", org.id)
    key, _ = await store.create_key(NewKey(project.id, "laptop"))
    await store.revoke_key(key.id)
    assert (await store.delete_project(project.id, cascade=False)).keys == ()


async def test_an_organisation_is_deleted_only_empty_or_with_all_in_it(store):  # noqa: F811
    """Its projects and their keys go in the same transaction."""
    org, other = [await store.create_organization(name) for name in "ab"]
    projects = [await store.create_project(name, org.id) for name in ("x", "y")]
    secrets = [(await store.create_key(NewKey(one.id, "k")))[1] for one in projects]
    with pytest.raises(NotEmpty):
        await store.delete_organization(org.id, cascade=False)
    deleted = await store.delete_organization(org.id, cascade=True)
    assert deleted.organizations == (org.id,)
    assert deleted.projects == tuple(one.id for one in projects)
    assert len(deleted.keys) == 2
    assert [await store.opened_by(one.digest) for one in secrets] == [None, None]
    assert (await store.organizations()).items == (other,)
    assert (await store.projects()).items == ()
    assert (await store.delete_organization(other.id, cascade=False)).projects == ()


async def test_a_use_is_noted_once_later_and_raises_no_revision(store):  # noqa: F811
    """Coarse, off every path: the later time stays, and a key that is gone is passed over."""
    org = await store.create_organization("acme")
    project = await store.create_project("chat", org.id)
    key, _ = await store.create_key(NewKey(project.id, "laptop"))
    assert key.last_used_at is None
    before = await store.revision()
    await store.note_uses({key.id: 1_700_000_100, "key_gone": 1_700_000_100})
    await store.note_uses({key.id: 1_700_000_050})
    await store.note_uses({})
    assert (await store.key(key.id)).last_used_at == 1_700_000_100
    assert [one.last_used_at for one in (await store.keys()).items] == [1_700_000_100]
    assert await store.revision() == before
    await store.delete_project(project.id, cascade=True)
    await store.note_uses({key.id: 1_700_000_200})
    assert (await store.keys()).items == ()


async def test_a_secret_opens_its_key_until_the_earlier_of_both_ends(store, clock):  # noqa: F811
    """The overlap of a rotation and the key's own end both count."""
    org = await store.create_organization("acme")
    project = await store.create_project("chat", org.id)
    key, first = await store.create_key(NewKey(project.id, "laptop", expires_at=int(clock.now) + 100))
    assert (await store.opened_by(first.digest)).expires_at == clock.now + 100
    _, second = await store.rotate_key(key.id, 10)
    assert (await store.opened_by(first.digest)).expires_at == clock.now + 10
    assert (await store.opened_by(second.digest)).expires_at == clock.now + 100
    assert await store.opened_by(b"\0" * 32) is None
    await store.revoke_key(key.id)
    assert await store.opened_by(second.digest) is None


def test_an_audit_log_that_keeps_nothing_is_refused():
    """Zero would be a way to switch it off unseen."""
    for wrong in ({"days": 0}, {"entries": 0}):
        with pytest.raises(ValueError, match="at least"):
            AuditKeep(**wrong)
    assert SYSTEM.kind is ActorKind.SYSTEM


async def test_an_alert_is_claimed_once_and_not_again_once_it_is_told(store, reopen, clock):  # noqa: F811
    """By whichever process asks first; it raises no revision."""
    before = await store.revision()
    until = clock.now + 60
    async with opened(reopen) as other:
        assert await store.claim_alert("alert_1", until)
        assert not await store.claim_alert("alert_1", until)
        assert not await other.claim_alert("alert_1", until)
        assert await other.claim_alert("alert_2", until)
        await store.settle_alert("alert_1", until + 1000)
        assert not await other.claim_alert("alert_1", until)
    assert await store.revision() == before


async def test_a_claim_that_nobody_settles_ends_by_itself(tmp_path, clock):  # noqa: F811
    """In SQLite by our clock (Redis ends it by its own)."""
    async with opened(lambda: SqliteStore.open(tmp_path / "s.sqlite3", clock)) as one:
        assert await one.claim_alert("alert_1", clock.now + 60)
        clock.now += 60
        assert await one.claim_alert("alert_1", clock.now + 60)


async def test_a_filter_that_finds_little_looks_at_a_bounded_part_and_goes_on(short, monkeypatch):
    """In Redis a page may be short, even empty; following the cursors finds everything once."""
    monkeypatch.setattr(redis_audit, "_STEP", 2)
    monkeypatch.setattr(redis_audit, "MAX_SCANNED", 4)
    async with opened(lambda: short("redis", AuditKeep())) as one:
        wanted = await one.create_organization("wanted")
        for number in range(9):
            await one.create_organization(f"o{number}")
        found, pages, after = [], 0, None
        while True:
            page = await one.audit(AuditWanted(subject_id=wanted.id), limit=5, after=after)
            found += page.items
            pages += 1
            if (after := page.next_after) is None:
                break
        assert [entry.change.subject_id for entry in found] == [wanted.id]
        assert pages == 3
        everything = []
        after = None
        while True:
            page = await one.audit(ALL, limit=3, after=after)
            everything += page.items
            if (after := page.next_after) is None:
                break
        assert len({entry.id for entry in everything}) == len(everything) == 10
