"""The first organisation, project and key, so that a first request needs no set-up.

A later start finds them again: the key in demo.json is kept as long as it opens the store.
"""

from policies.keys import digest
from policies.store import NewKey, Snapshot, Store

DEMO_NAME = "demo"


async def demo_key(store: Store, last_key: str, now: float) -> str:
    """The secret of the demo key: `last_key` while it is valid at `now` (Unix seconds), else a new one.

    Makes the organisation and the project `demo` where there are none. Raises `StoreError`.
    """
    snapshot = await store.snapshot()
    if last_key and is_valid(snapshot, last_key, now):
        return last_key
    organization_id = next((one.id for one in snapshot.organizations if one.name == DEMO_NAME), None)
    if organization_id is None:
        organization_id = (await store.create_organization(DEMO_NAME)).id
    project_id = next(
        (one.id for one in snapshot.projects if one.name == DEMO_NAME and one.organization_id == organization_id), None
    )
    if project_id is None:
        project_id = (await store.create_project(DEMO_NAME, organization_id)).id
    _, secret = await store.create_key(NewKey(project_id=project_id, name=DEMO_NAME))
    return secret.text


def is_valid(snapshot: Snapshot, secret: str, now: float) -> bool:
    """Whether `secret` opens a key of the snapshot at `now`: known, not revoked, not expired."""
    hashed = digest(secret.encode("utf-8", "surrogatepass"))
    entry = next((one for one in snapshot.digests if one.digest == hashed), None)
    if entry is None or (entry.expires_at is not None and entry.expires_at <= now):
        return False
    key = next((one for one in snapshot.keys if one.id == entry.key_id), None)
    return key is not None and key.revoked_at is None and (key.expires_at is None or key.expires_at > now)
