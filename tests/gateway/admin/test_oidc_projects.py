"""A person whose token names projects may look and act in these alone, whatever else the token says."""

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admin.app import create_admin_app
from gateway.admin.jwks import KeySet
from gateway.admin.oidc import MAX_PROJECTS, Claimed, People, claimed_by, grants_of
from gateway.admin_settings import AdminSection
from policies.roles import EVERYWHERE, Grant, Place
from policies.sqlite_store import SqliteStore
from policies.store import NewKey, StoreError
from policies.tenant import Role
from tests.gateway.admin.conftest import TOKEN
from tests.gateway.admin.issuer import AUDIENCE, running_issuer

A = "/admin/v1"
SECTION = AdminSection(oidc_issuer="https://id.example", oidc_audience="x")


class World:
    """Two organisations; `own` and `beside` are projects of the first, `foreign` of the second."""

    def __init__(self, client, issuer, ids, keys):
        self._client = client
        self._issuer = issuer
        self.ids = ids
        self.keys = keys

    async def ask(self, method, path, claims, body=None):
        """The answer to a person with these claims; names of things in braces become their ids."""
        named = {
            name: [self.ids[one] for one in value] if isinstance(value, list) and name != "roles" else value
            for name, value in claims.items()
        }
        headers = {"authorization": f"Bearer {self._issuer.token(**named)}"}
        return await self._client.request(method, A + path.format(**self.ids), json=body, headers=headers)


@pytest.fixture
async def world(tmp_path, control):
    async with running_issuer() as issuer, await SqliteStore.open(tmp_path / "store.sqlite3") as store:
        acme, other = [await store.create_organization(name) for name in ("acme", "other")]
        places = {"own": acme, "beside": acme, "foreign": other}
        ids = {"acme": acme.id, "other": other.id, "none": "proj_none"}
        ids |= {name: (await store.create_project(name, of.id)).id for name, of in places.items()}
        keys = {name: (await store.create_key(NewKey(ids[name], "k")))[0].id for name in places}
        people = People(AdminSection(oidc_issuer=issuer.url, oidc_audience=AUDIENCE), KeySet(issuer.url))
        app = create_admin_app(store, control, TOKEN, people=people)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://admin") as client:
            yield World(client, issuer, ids, keys)
        await people.close()


CLAIMS = {
    "the project alone": {"project": ["own"]},
    "its organisation, too": {"project": ["own"], "organization": ["acme"]},
    "both organisations": {"project": ["own"], "organization": ["other", "acme"]},
    "a project that is not there": {"project": ["none", "own"]},
    "a foreign project that its organisation does not have": {"project": ["own", "foreign"], "organization": ["acme"]},
}


@pytest.mark.parametrize("claims", CLAIMS)
@pytest.mark.parametrize("role", ["viewer", "project_admin"])
async def test_a_person_of_one_project_has_that_one(world, role, claims):
    """Reading its own, making a key there if the role allows; its neighbours and strangers do not exist."""
    who = {**CLAIMS[claims], "roles": [role]}
    assert (await world.ask("GET", "/projects/{own}", who)).status_code == 200
    listed = (await world.ask("GET", "/projects", who)).json()["data"]
    assert [one["id"] for one in listed] == [world.ids["own"]]
    keys = (await world.ask("GET", "/keys", who)).json()["data"]
    assert [one["id"] for one in keys] == [world.keys["own"]]
    for name in ("beside", "foreign"):
        for path in (f"/projects/{{{name}}}", f"/projects/{{{name}}}/limits", f"/keys/{world.keys[name]}"):
            assert (await world.ask("GET", path, who)).status_code == 404, path
    made = {
        name: (await world.ask("POST", "/keys", who, {"name": "n", "project_id": world.ids[name]})).status_code
        for name in ("own", "beside", "foreign")
    }
    absent = 400 if role == "project_admin" else 403
    assert made == {"own": 201 if role == "project_admin" else 403, "beside": absent, "foreign": absent}
    assert (await world.ask("PUT", "/projects/{own}/limits", who, {})).status_code == 403
    assert (await world.ask("GET", "/organizations/{acme}", who)).status_code == 404
    assert (await world.ask("GET", "/audit", who)).status_code == 403


NOTHING = {
    "somebody else's project": {"project": ["foreign"], "organization": ["acme"]},
    "no such project": {"project": ["none"]},
    "no such organisation": {"project": ["own"], "organization": ["none"]},
    "an empty list": {"project": [], "organization": ["acme"]},
    "an empty organisation": {"project": ["own"], "organization": []},
    "a number": {"project": 7, "organization": ["acme"]},
    "an object": {"project": {"own": True}, "organization": ["acme"]},
}


@pytest.mark.parametrize("claims", NOTHING)
@pytest.mark.parametrize("role", ["viewer", "project_admin", "service"])
async def test_a_claim_that_names_nothing_of_ones_own_gives_nothing(world, role, claims):
    """Not even what the organisation alone would give: a claim that is there narrows."""
    answer = await world.ask("GET", "/projects", {**NOTHING[claims], "roles": [role]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "no_role")


@pytest.mark.parametrize("broken", [[], None, "", 7, ["warmlane"], False])
def test_a_nested_claim_whose_outer_part_is_no_object_narrows_too(broken):
    """A provider that sends `[]` for "none" must not thereby give all projects of the organisation."""
    section = AdminSection(
        oidc_issuer="https://id.example", oidc_audience="x", oidc_project_claim="warmlane.access.projects"
    )
    for claim in ({"warmlane": broken}, {"warmlane": {"access": broken}}):
        claims = {"roles": ["viewer", "project_admin"], "organization": ["org_a"], **claim}
        assert grants_of(claims, section) == ()
        assert claimed_by(claims, section) is None
    section = AdminSection(
        oidc_issuer="https://id.example", oidc_audience="x", oidc_organization_claim="warmlane.organizations"
    )
    claimed = claimed_by({"roles": "viewer", "project": "proj_a", "warmlane": broken}, section)
    assert claimed is not None
    assert claimed.grants_at(Place("org_a", "proj_a")) == ()


async def test_an_organisations_admin_is_not_narrowed_by_a_project(world):
    """The claim is about the roles that a project has."""
    who = {"roles": ["organization_admin", "viewer"], "organization": ["acme"], "project": ["own"]}
    listed = (await world.ask("GET", "/projects", who)).json()["data"]
    assert {one["id"] for one in listed} == {world.ids["own"], world.ids["beside"]}
    assert (await world.ask("GET", "/projects/{foreign}", who)).status_code == 404


async def test_a_person_of_two_projects_has_both(world):
    """Also of two organisations."""
    who = {"roles": ["viewer"], "project": ["own", "foreign"]}
    listed = (await world.ask("GET", "/projects", who)).json()["data"]
    assert {one["id"] for one in listed} == {world.ids["own"], world.ids["foreign"]}


async def test_a_store_that_is_away_is_not_a_missing_role(world, monkeypatch):
    """503: nobody can say now where the project is."""

    async def away(*_):
        raise StoreError("away")

    monkeypatch.setattr(SqliteStore, "project", away)
    answer = await world.ask("GET", "/projects", {"roles": ["viewer"], "project": ["own"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")


def test_names_of_claims_are_settings():
    """Nested ones, too; projects are bounded."""
    section = SECTION.model_copy(update={"oidc_project_claim": "warmlane.projects"})
    claims = {"roles": "viewer", "warmlane": {"projects": "proj_1 proj_2"}, "project": "proj_3"}
    assert claimed_by(claims, section) == Claimed((Role.VIEWER,), ("proj_1", "proj_2"), None)
    many = {"roles": "viewer", "project": [f"proj_{number}" for number in range(100)]}
    assert len(claimed_by(many, SECTION).projects) == MAX_PROJECTS
    assert grants_of({"roles": "platform_admin", "project": "proj_1"}, SECTION) == (
        Grant(Role.PLATFORM_ADMIN, EVERYWHERE),
    )


WORDS = st.sampled_from(["org_1", "org_2", "proj_1", "proj_2", ""])
ANY_CLAIM = st.one_of(st.none(), st.integers(), WORDS, st.lists(st.one_of(WORDS, st.integers()), max_size=4))


@settings(max_examples=200, deadline=None)
@given(
    roles=st.lists(st.sampled_from([role.value for role in Role if role is not Role.PLATFORM_ADMIN])),
    claims=st.fixed_dictionaries({}, optional={"organization": ANY_CLAIM, "project": ANY_CLAIM}),
)
def test_no_token_reaches_beyond_what_it_names(roles, claims):
    """Whatever the claims are: a grant is at a named organisation, or at a named project in one."""
    said = {"roles": roles, **claims}
    named = {
        name: value.split() if isinstance(value, str) else value if isinstance(value, list) else []
        for name, value in claims.items()
    }
    for grant in grants_of(said, SECTION):
        assert grant.place.organization_id in named["organization"]
        assert grant.role is Role.ORGANIZATION_ADMIN or "project" not in claims
    claimed = claimed_by(said, SECTION)
    if claimed is not None:
        assert set(claimed.projects) <= set(named["project"])
        for place in (Place("org_1", "proj_1"), Place("org_2", "proj_2"), Place("org_3", "proj_3")):
            for grant in claimed.grants_at(place):
                assert grant.place == place
                assert "organization" not in claims or place.organization_id in named["organization"]
