"""Whose prompts may meet in one cache, and that two such circles never have one salt (case P10)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.principals import principals_of
from policies.keys import cache_salt, new_id
from policies.limits import LimitsError, parse_limits
from policies.store import Key, KeyDigest, Organization, Project, Snapshot
from policies.tenant import Limits, Role, cache_domain

SECRET = b"s" * 32
groups = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
ids = st.builds(new_id, st.sampled_from(["proj", "org"]))


def tenants(organizations, projects):
    """The tenants of these (id, limits) organisations and (id, organisation, limits) projects, by project."""
    keys = [
        Key(f"key_{one}", one, "k", "wl-", frozenset({Role.SERVICE}), None, None, 0, None, None) for one, *_ in projects
    ]
    digests = [KeyDigest(one.id.encode().ljust(32, b"d"), one.id, None) for one in keys]
    built = principals_of(
        Snapshot(
            revision=1,
            server_secret=SECRET,
            organizations=tuple(Organization(one, one, 0, limits) for one, limits in organizations),
            projects=tuple(Project(one, of, one, 0, limits) for one, of, limits in projects),
            keys=tuple(keys),
            digests=tuple(digests),
        )
    )
    return built.tenants


@given(ids, ids, groups)
def test_a_group_is_never_taken_for_a_project_or_for_one_of_another_organisation(first, second, group):
    """Ids hold no slash, so the names of all circles differ, and with them the salts."""
    shared = Limits(sharing_group=group)
    domains = {first, f"{first}/{group}", second, f"{second}/{group}"}
    found = {cache_domain(first, first, Limits()), cache_domain("p", first, shared)}
    found |= {cache_domain(second, second, Limits()), cache_domain("q", second, shared)}
    assert found == domains
    assert len({cache_salt(SECRET, one) for one in domains}) == len(domains)


def test_projects_share_by_naming_one_group_in_one_organisation():
    """Opt-in at either level; a project says no with null."""
    found = tenants(
        [("org_a", b"{}"), ("org_b", b"{}"), ("org_c", b'{"sharing_group": "all"}')],
        [
            ("p1", "org_a", b'{"sharing_group": "team"}'),
            ("p2", "org_a", b'{"sharing_group": "team"}'),
            ("p3", "org_a", b"{}"),
            ("p4", "org_b", b'{"sharing_group": "team"}'),
            ("p5", "org_c", b"{}"),
            ("p6", "org_c", b'{"rpm": 1}'),
            ("p7", "org_c", b'{"sharing_group": null}'),
        ],
    )
    salts = {name: tenant.cache_salt for name, tenant in found.items()}
    assert salts["p1"] == salts["p2"]
    assert salts["p5"] == salts["p6"]
    assert len(set(salts.values())) == 5
    assert found["p7"].cache_domain == "p7"


def test_a_document_that_cannot_be_read_shares_nothing():
    """A closed project keeps its own salt, whatever its organisation shares."""
    found = tenants(
        [("org_c", b'{"sharing_group": "all"}')], [("p1", "org_c", b'{"rpm": NaN}'), ("p2", "org_c", b"{}")]
    )
    assert found["p1"].cache_domain == "p1"
    assert found["p2"].cache_domain == "org_c/all"


@pytest.mark.parametrize("group", ["", "a/b", "a b", "é", ".x" * 40, "x" * 65, "org_b/team", "a\\n", "\\u0000"])
def test_a_group_has_a_plain_name(group):
    """A slash would be another organisation's group."""
    with pytest.raises(LimitsError):
        parse_limits(f'{{"sharing_group": "{group}"}}'.encode())
