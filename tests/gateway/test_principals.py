"""From stored rows to principals: inheritance, salts, lanes, and bad documents that close doors."""

import pytest

from gateway.principals import principals_of
from policies.keys import cache_salt
from policies.lane import Lane
from policies.limits import CLOSED
from policies.store import Key, KeyDigest, Organization, Project, Snapshot
from policies.tenant import Role

SECRET = b"s" * 32
DIGEST = b"d" * 32


def snapshot(*, above=b"{}", own=b"{}", max_lane=None, default_lane=None, key_ends=None, secret_ends=None) -> Snapshot:
    key = Key("key_1", "proj_1", "laptop", "wl-1", frozenset({Role.SERVICE}), max_lane, default_lane, 0, key_ends, None)
    return Snapshot(
        revision=1,
        server_secret=SECRET,
        organizations=(Organization("org_1", "acme", 0, above),),
        projects=(Project("proj_1", "org_1", "chat", 0, own),),
        keys=(key,),
        digests=(KeyDigest(DIGEST, "key_1", secret_ends),),
    )


def the_principal(**changes):
    built = principals_of(snapshot(**changes))
    assert built.closed == ()
    return built.principals[DIGEST]


def test_a_principal_carries_its_tenant_and_salt():
    """The salt is derived, never chosen by a caller."""
    principal = the_principal()
    assert principal.tenant.project_id == "proj_1"
    assert principal.tenant.organization_id == "org_1"
    assert principal.tenant.cache_salt == cache_salt(SECRET, "proj_1")
    assert (principal.key_id, principal.key_name, principal.roles) == ("key_1", "laptop", {Role.SERVICE})


def test_both_levels_of_limits_reach_the_tenant():
    """The organisation's limit is for the sum of its projects, so both are needed."""
    tenant = the_principal(above=b'{"rpm": 10}', own=b'{"rpm": 4}').tenant
    assert (tenant.organization_limits.rpm, tenant.limits.rpm) == (10, 4)


@pytest.mark.parametrize(
    ("own", "max_lane", "default_lane", "lanes"),
    [
        (b"{}", None, None, (Lane.INTERACTIVE, Lane.INTERACTIVE)),
        (b"{}", Lane.BULK, None, (Lane.BULK, Lane.BULK)),
        (b"{}", None, Lane.STANDARD, (Lane.INTERACTIVE, Lane.STANDARD)),
        (b'{"max_lane": "standard"}', Lane.INTERACTIVE, Lane.INTERACTIVE, (Lane.STANDARD, Lane.STANDARD)),
        (b'{"max_lane": "standard", "default_lane": "bulk"}', None, None, (Lane.STANDARD, Lane.BULK)),
    ],
)
def test_a_key_narrows_its_projects_lanes_and_never_widens_them(own, max_lane, default_lane, lanes):
    """A key made when the project was allowed more must not keep more."""
    principal = the_principal(own=own, max_lane=max_lane, default_lane=default_lane)
    assert (principal.max_lane, principal.default_lane) == lanes


@pytest.mark.parametrize(
    ("key_ends", "secret_ends", "ends"),
    [(None, None, None), (9, None, 9), (None, 5.0, 5.0), (3, 5.0, 3), (9, 5.0, 5.0)],
)
def test_a_principal_ends_with_its_key_or_its_secret(key_ends, secret_ends, ends):
    """The old secret of a rotation ends before its key."""
    assert the_principal(key_ends=key_ends, secret_ends=secret_ends).expires_at == ends


@pytest.mark.parametrize("bad", [b"NaN", b'{"rpm": NaN}', b'{"rpm": "5"}', b'{"rmp": 5}', b'{"tpm": "5"}', b""])
def test_a_bad_stored_document_closes_its_project_and_is_reported(bad):
    """P15: a bad value in the store makes the limit closed, not open."""
    built = principals_of(snapshot(own=bad))
    assert built.principals[DIGEST].tenant.limits == CLOSED
    assert [subject for subject, _ in built.closed] == ["proj_1"]


def test_a_bad_stored_document_of_an_organisation_closes_all_of_it():
    """P15 a level above."""
    built = principals_of(snapshot(above=b'{"rpm": 1e309}'))
    assert built.principals[DIGEST].tenant.limits == CLOSED
    assert built.principals[DIGEST].tenant.organization_limits == CLOSED
    assert [subject for subject, _ in built.closed] == ["org_1"]
