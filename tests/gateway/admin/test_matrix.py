"""Who may do what: role x endpoint x own, neighbouring or foreign object, complete over the app's own endpoint table.

A new endpoint without an entry here fails the test, so nobody adds a door without saying who may open it.
"""

import itertools
import json
from dataclasses import dataclass

import httpx
import pytest

from gateway.admin.app import admin_endpoints, create_admin_app
from gateway.admin.control_client import GatewayControl
from gateway.admin.jwks import KeySet
from gateway.admin.oidc import People
from gateway.admin.usage import Usage
from gateway.admin_settings import AdminSection
from policies.ledger import Retention
from policies.sqlite_ledger import SqliteLedger
from policies.sqlite_store import SqliteStore
from policies.store import NewKey, Organization, Project
from policies.tenant import Role
from tests.gateway.admin.conftest import TOKEN
from tests.gateway.admin.issuer import AUDIENCE, running_issuer
from tests.gateway.admin.test_usage import NOW, row

KEEP = Retention(30, 400)
A = "/admin/v1"
WHOSE = ("own", "beside", "foreign")  # the caller's project, another of its organisation, one of another organisation
PLATFORM, ORGANIZATION, PROJECT, VIEWER = (
    Role.PLATFORM_ADMIN, Role.ORGANIZATION_ADMIN, Role.PROJECT_ADMIN, Role.VIEWER,
)  # fmt: skip
YES, FORBIDDEN, ABSENT, UNKNOWN = "yes", 403, 404, 400  # 400: what a body names does not exist for the caller


def rule(organization: str, project: str, viewer: str, absent=ABSENT):
    """What each role gets, three letters each in the order of `WHOSE`: y(es), f(orbidden) or - (not there)."""
    words = {"y": YES, "f": FORBIDDEN, "-": absent}
    letters = {PLATFORM: "yyy", ORGANIZATION: organization, PROJECT: project, VIEWER: viewer}
    return {role: dict(zip(WHOSE, map(words.get, of), strict=True)) for role, of in letters.items()}


READ_ORGANIZATION = rule("yy-", "---", "---")
READ_PROJECT = rule("yy-", "y--", "y--")
MANAGE_PROJECT = rule("yy-", "fff", "fff")
MANAGE_KEY = rule("yy-", "y--", "fff")
PLATFORM_ONLY = rule("fff", "fff", "fff")
LISTED = rule("yyy", "yyy", "yyy")  # everybody with a role; what is in it is tested below
AUDIT = rule("yy-", "fff", "fff")  # asked with the object's organisation
USAGE = rule("yy-", "y--", "y--")  # asked with the object's project and organisation

MATRIX = {
    ("POST", f"{A}/organizations"): PLATFORM_ONLY,
    ("GET", f"{A}/organizations"): LISTED,
    ("GET", f"{A}/organizations/{{id}}"): READ_ORGANIZATION,
    ("DELETE", f"{A}/organizations/{{id}}"): PLATFORM_ONLY,
    ("GET", f"{A}/organizations/{{id}}/limits"): READ_ORGANIZATION,
    ("PUT", f"{A}/organizations/{{id}}/limits"): PLATFORM_ONLY,
    ("POST", f"{A}/projects"): rule("yy-", "fff", "fff", absent=UNKNOWN),
    ("GET", f"{A}/projects"): LISTED,
    ("GET", f"{A}/projects/{{id}}"): READ_PROJECT,
    ("DELETE", f"{A}/projects/{{id}}"): MANAGE_PROJECT,
    ("GET", f"{A}/projects/{{id}}/limits"): READ_PROJECT,
    ("PUT", f"{A}/projects/{{id}}/limits"): MANAGE_PROJECT,
    ("POST", f"{A}/keys"): rule("yy-", "y--", "fff", absent=UNKNOWN),
    ("GET", f"{A}/keys"): LISTED,
    ("GET", f"{A}/keys/{{id}}"): READ_PROJECT,
    ("DELETE", f"{A}/keys/{{id}}"): MANAGE_KEY,
    ("POST", f"{A}/keys/{{id}}/rotate"): MANAGE_KEY,
    ("GET", f"{A}/audit"): AUDIT,
    ("GET", f"{A}/usage"): USAGE,
    ("GET", f"{A}/usage/requests"): USAGE,
    ("GET", f"{A}/usage/requests/{{id}}"): READ_PROJECT,
    ("GET", f"{A}/requests/{{id}}"): READ_PROJECT,
    ("GET", f"{A}/requests/{{id}}/receipt"): READ_PROJECT,
    ("GET", f"{A}/openapi.json"): LISTED,
    ("GET", f"{A}/prefixes"): LISTED,
    ("GET", f"{A}/replicas"): PLATFORM_ONLY,
    ("POST", f"{A}/replicas/{{name:path}}/drain"): PLATFORM_ONLY,
    ("POST", f"{A}/replicas/{{name:path}}/resume"): PLATFORM_ONLY,
    ("POST", f"{A}/replicas/{{name:path}}/release"): PLATFORM_ONLY,
    ("POST", f"{A}/replicas/warm"): PLATFORM_ONLY,
    ("POST", f"{A}/routes/explain"): PLATFORM_ONLY,
    ("GET", f"{A}/queue"): PLATFORM_ONLY,
    ("GET", f"{A}/statistics"): PLATFORM_ONLY,
    ("GET", f"{A}/config"): PLATFORM_ONLY,
    ("POST", f"{A}/config/reload"): PLATFORM_ONLY,
    ("GET", "/metrics"): PLATFORM_ONLY,
}
BODIES = {
    f"{A}/organizations": lambda _: {"name": "new"},
    f"{A}/projects": lambda it: {"name": "new", "organization_id": it.organization.id},
    f"{A}/keys": lambda it: {"name": "new", "project_id": it.project.id},
    f"{A}/replicas/warm": lambda it: {"project_id": it.project.id, "request": {"model": "m", "messages": []}},
    f"{A}/routes/explain": lambda it: {"project_id": it.project.id},
}
ENDPOINTS = admin_endpoints(None, GatewayControl(list), usage=Usage(None, KEEP))  # type: ignore[arg-type]


@dataclass
class Thing:
    """One project in its organisation, with a key, and a request that it made."""

    organization: Organization
    project: Project
    key_id: str
    request_id: str


class World:
    """Two organisations, the first with two projects, made anew for each cell; and callers of every role."""

    def __init__(self, store, ledger, gateway, client) -> None:
        self.store, self.ledger, self.gateway, self.client = store, ledger, gateway, client
        self.numbers = itertools.count()

    async def thing(self, organization) -> Thing:
        project = await self.store.create_project("chat", organization.id)
        key, _ = await self.store.create_key(NewKey(project.id, "laptop"))
        entry = row(next(self.numbers), organization=organization.id, project=project.id)
        await self.ledger.add([entry])
        record = {"request_id": entry.request_id, "organization": organization.id, "project": project.id}
        self.gateway.will("GET", f"/requests/{entry.request_id}", record)
        self.gateway.will("GET", f"/requests/{entry.request_id}/receipt", {"request_id": entry.request_id})
        return Thing(organization, project, key.id, entry.request_id)

    async def things(self) -> dict[str, Thing]:
        acme, other = [await self.store.create_organization(name) for name in ("acme", "other")]
        return {"own": await self.thing(acme), "beside": await self.thing(acme), "foreign": await self.thing(other)}

    async def secret(self, own: Thing, *roles: Role) -> str:
        return (await self.store.create_key(NewKey(own.project.id, "admin", frozenset(roles))))[1].text

    async def ask(self, secret: str, method: str, path: str, it: Thing) -> httpx.Response:
        spelled = path.replace("{name:path}", "w-1").replace("{id}", self._id_in(path, it))
        if path in (f"{A}/usage", f"{A}/usage/requests"):
            spelled += f"?project_id={it.project.id}&organization_id={it.organization.id}"
        elif path == f"{A}/audit":
            spelled += f"?organization_id={it.organization.id}"
        if method == "DELETE" and "/keys/" not in path:
            spelled += "?cascade=true"
        body = BODIES[path](it) if method == "POST" and path in BODIES else {} if method in ("PUT", "POST") else None
        headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
        return await self.client.request(method, spelled, json=body, headers=headers)

    @staticmethod
    def _id_in(path: str, it: Thing) -> str:
        kinds = {"organizations": it.organization.id, "projects": it.project.id, "keys": it.key_id}
        return kinds.get(path.removeprefix(f"{A}/").split("/")[0], it.request_id)


@pytest.fixture
async def world(tmp_path, gateway, control):
    for method, path in (
        ("GET", "/replicas"), ("POST", "/replicas/w-1/drain"), ("POST", "/replicas/w-1/resume"), ("GET", "/queue"),
        ("POST", "/replicas/w-1/release"), ("POST", "/routes/explain"), ("GET", "/statistics"), ("GET", "/metrics"),
    ):  # fmt: skip
        gateway.will(method, path, "" if path == "/metrics" else {})
    gateway.will("GET", "/prefixes", {"data": []})
    warmed = {"project_id": "p", "organization_id": "o", "model": "m", "lane": "bulk", "asked": 1, "warmed": 1}
    gateway.will("POST", "/prefixes/warm", warmed | {"charged_tokens": 5, "replicas": []})
    store_path, ledger_path = tmp_path / "store.sqlite3", tmp_path / "ledger.sqlite3"
    async with await SqliteStore.open(store_path) as store, await SqliteLedger.open(ledger_path) as ledger:
        app = create_admin_app(store, control, TOKEN, usage=Usage(ledger, KEEP, lambda: NOW))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://admin") as client:
            yield World(store, ledger, gateway, client)


def test_every_endpoint_has_its_row():
    """The app's own table is the inventory; only what is open to everybody has none."""
    assert set(MATRIX) == {(one.method, one.path) for one in ENDPOINTS if not one.is_public}


@pytest.mark.parametrize(("method", "path"), MATRIX, ids=lambda part: part.removeprefix(A))
async def test_each_role_gets_what_the_matrix_says(world, method, path):
    """Own, neighbouring and foreign objects; a refusal changes nothing and tells nothing of the object."""
    for role, expected in MATRIX[method, path].items():
        for whose in WHOSE:
            things = await world.things()
            secret = await world.secret(things["own"], role)
            before = await world.store.revision()
            answer = await world.ask(secret, method, path, things[whose])
            cell = (role.value, whose, answer.status_code, answer.text[:300])
            if expected[whose] == YES:
                assert answer.status_code < 300, cell
                continue
            assert answer.status_code == expected[whose], cell
            assert await world.store.revision() == before, cell
            error = answer.json()["error"]
            assert (
                error["code"]
                in {
                    403: {"not_allowed"},
                    404: {"unknown_organization", "unknown_project", "unknown_key", "unknown_request"},
                    400: {"unknown_organization", "unknown_project"},
                }[answer.status_code]
            ), cell
            if answer.status_code != FORBIDDEN:
                nowhere = await self_made_up(world, secret, method, path, things[whose])
                assert nowhere == normal(answer, things[whose]), cell


async def self_made_up(world, secret, method, path, it):
    """The answer for ids that nobody has, with the ids taken out."""
    made_up = Thing(Organization("org_none", "x", 0), Project("proj_none", "org_none", "x", 0), "key_none", "req_none")
    return normal(await world.ask(secret, method, path, made_up), made_up)


def normal(answer, it):
    text = answer.text
    for found in (it.organization.id, it.project.id, it.key_id, it.request_id):
        text = text.replace(found, "ID")
    return answer.status_code, text


@pytest.mark.parametrize(("method", "path"), MATRIX, ids=lambda part: part.removeprefix(A))
async def test_a_service_key_opens_no_endpoint(world, method, path):
    """The data plane's keys are nobody here, whatever the object."""
    things = await world.things()
    secret = await world.secret(things["own"], Role.SERVICE)
    for it in things.values():
        answer = await world.ask(secret, method, path, it)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_admin_token")


async def spent(world, own, how):
    """A platform admin's secret that is over, or none."""
    if how == "none":
        return None
    ends = {"expires_at": 1_000} if how == "expired" else {}
    key, secret = await world.store.create_key(NewKey(own.project.id, "x", frozenset({PLATFORM}), **ends))
    if how == "revoked":
        await world.store.revoke_key(key.id)
    elif how == "rotated":
        await world.store.rotate_key(key.id)
    elif how == "deleted":
        await world.store.delete_project(own.project.id, cascade=True)
    return secret.text[:-1] + "~" if how == "misspelt" else secret.text


@pytest.mark.parametrize("how", ["none", "misspelt", "expired", "revoked", "rotated", "deleted"])
@pytest.mark.parametrize(("method", "path"), MATRIX, ids=lambda part: part.removeprefix(A))
async def test_a_credential_that_is_over_opens_no_endpoint_at_all(world, method, path, how):
    """It was a platform admin's; now it is nobody's, and all look alike."""
    things = await world.things()
    it = things["beside"]
    secret = await spent(world, things["own"], how)
    before = await world.store.revision()
    answer = await world.ask(secret, method, path, it)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_admin_token")
    assert await world.store.revision() == before


CHANGES_NOTHING = {("POST", f"{A}/routes/explain")}  # a dry run


@pytest.mark.parametrize(("method", "path"), [one for one in MATRIX if one[0] != "GET" and one not in CHANGES_NOTHING])
async def test_every_endpoint_that_changes_something_is_in_the_audit_log(world, method, path):
    """Generated from the inventory: one entry with who asked, found by the answer's request id."""
    it = (await world.things())["own"]
    secret = await world.secret((await world.things())["own"], PLATFORM)
    answer = await world.ask(secret, method, path, it)
    assert answer.status_code < 300, answer.text
    headers = {"authorization": f"Bearer {secret}"}
    query = {"request_id": answer.headers["x-request-id"]}
    rows = (await world.client.get(f"{A}/audit", params=query, headers=headers)).json()["data"]
    assert rows, "nobody could say who did this"
    assert {one["actor_kind"] for one in rows} == {"key"}
    assert all(one["subject_id"] and (one["before"] is not None or one["after"] is not None) for one in rows)


async def test_roles_and_sharing_groups_are_changed_in_sight_of_the_audit_log(world):
    """A key's roles are in its entry, and a group that projects share a cache in is in the limits' before and after."""
    own = (await world.things())["own"]
    headers = {"authorization": f"Bearer {TOKEN}"}
    body = {"name": "ops", "project_id": own.project.id, "roles": ["project_admin"]}
    made = (await world.client.post(f"{A}/keys", json=body, headers=headers)).json()
    for document in ({"sharing_group": "docs"}, {}):
        await world.client.put(f"{A}/projects/{own.project.id}/limits", json=document, headers=headers)
    rows = (await world.client.get(f"{A}/audit?project_id={own.project.id}", headers=headers)).json()["data"]
    found = {(one["action"], one["subject_id"]): one for one in rows}
    assert found["key.created", made["id"]]["after"]["roles"] == ["project_admin"]
    groups = [(one["before"], one["after"]) for one in rows if one["action"] == "limits.set"]
    assert groups == [({"sharing_group": "docs"}, {}), ({}, {"sharing_group": "docs"})]


@pytest.mark.parametrize("role", [ORGANIZATION, PROJECT, VIEWER])
async def test_a_list_has_nothing_in_it_but_the_callers_own(world, role):
    """Page after page, one by one; foreign ids as cursors or filters find nothing."""
    things = await world.things()
    for _ in range(3):
        await world.things()
    secret = await world.secret(things["own"], role)
    headers = {"authorization": f"Bearer {secret}"}

    async def listed(what, **query):
        found, after = [], None
        while True:
            params = {"limit": 1, **query, **({"after": after} if after else {})}
            page = (await world.client.get(f"{A}/{what}", params=params, headers=headers)).json()
            found += [one["id"] for one in page["data"]]
            if (after := page["next_cursor"]) is None:
                return found

    own, beside, foreign = things.values()
    wide = role is ORGANIZATION
    assert await listed("organizations") == ([own.organization.id] if wide else [])
    assert await listed("projects") == [own.project.id] + ([beside.project.id] if wide else [])
    keys = await listed("keys")
    assert set(keys) == {one.id for of in ([own, beside] if wide else [own]) for one in (await world.store.keys(project_id=of.project.id)).items}  # fmt: skip
    assert await listed("projects", organization_id=foreign.organization.id) == []
    assert await listed("keys", project_id=foreign.project.id) == []
    for what, cursor in (("organizations", foreign.organization.id), ("projects", foreign.project.id), ("keys", foreign.key_id)):  # fmt: skip
        answer = await world.client.get(f"{A}/{what}", params={"after": cursor}, headers=headers)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")


@pytest.mark.parametrize("role", [ORGANIZATION, PROJECT, VIEWER])
async def test_usage_without_a_filter_is_the_callers_own(world, role):
    """Another tenant's numbers are not in any sum."""
    things = await world.things()
    secret = await world.secret(things["own"], role)
    headers = {"authorization": f"Bearer {secret}"}
    mine = [things["own"], things["beside"]] if role is ORGANIZATION else [things["own"]]
    rows = (await world.client.get(f"{A}/usage?group_by=project", headers=headers)).json()["data"]
    assert {one["group"] for one in rows} == {one.project.id for one in mine}
    rows = (await world.client.get(f"{A}/usage/requests", headers=headers)).json()["data"]
    assert {one["request_id"] for one in rows} == {one.request_id for one in mine}
    foreign = await world.client.get(f"{A}/usage?organization_id={things['foreign'].organization.id}", headers=headers)
    assert foreign.status_code == 404
    beside = await world.client.get(f"{A}/usage?project_id={things['foreign'].project.id}", headers=headers)
    assert beside.json().get("data", []) == []


async def test_an_organisations_admin_reads_its_own_part_of_the_log_alone(world):
    """Who changed what elsewhere, and what runs, is not theirs to know."""
    things = await world.things()
    headers = {"authorization": f"Bearer {await world.secret(things['own'], ORGANIZATION)}"}
    rows = (await world.client.get(f"{A}/audit?limit=1000", headers=headers)).json()["data"]
    assert {one["organization_id"] for one in rows} == {things["own"].organization.id}
    assert things["foreign"].key_id not in json.dumps(rows)


UP = [
    (PROJECT, [Role.ORGANIZATION_ADMIN]), (PROJECT, [Role.PLATFORM_ADMIN]), (PROJECT, [Role.SERVICE, Role.ORGANIZATION_ADMIN]),
    (ORGANIZATION, [Role.PLATFORM_ADMIN]),
]  # fmt: skip


@pytest.mark.parametrize(("role", "wanted"), UP)
async def test_no_key_can_be_made_renewed_or_ended_that_can_do_more_than_its_maker(world, role, wanted):
    """Neither a new key nor a new secret of an existing one is a way up."""
    own = (await world.things())["own"]
    headers = {"authorization": f"Bearer {await world.secret(own, role)}"}
    mighty, _ = await world.store.create_key(NewKey(own.project.id, "mighty", frozenset(wanted)))
    body = {"name": "up", "project_id": own.project.id, "roles": [one.value for one in wanted]}
    made = await world.client.post(f"{A}/keys", json=body, headers=headers)
    rotated = await world.client.post(f"{A}/keys/{mighty.id}/rotate", headers=headers)
    revoked = await world.client.delete(f"{A}/keys/{mighty.id}", headers=headers)
    for answer in (made, rotated, revoked):
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "role_not_yours")
    assert (await world.store.key(mighty.id)).revoked_at is None


async def test_no_project_is_deleted_with_a_key_that_is_not_the_callers_to_revoke(world):
    """Deletion is no way around it; once that key is revoked, or by whoever may revoke it, the project goes."""
    things = await world.things()
    for kind, revokes in (("own", True), ("foreign", False)):
        of = things[kind]
        headers = {"authorization": f"Bearer {await world.secret(of, ORGANIZATION)}"}
        mighty, _ = await world.store.create_key(NewKey(of.project.id, "mighty", frozenset([Role.PLATFORM_ADMIN])))
        path = f"{A}/projects/{of.project.id}?cascade=true"
        answer = await world.client.delete(path, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "role_not_yours")
        assert (await world.store.key(mighty.id)).revoked_at is None
        if revokes:
            await world.store.revoke_key(mighty.id)
        else:
            headers = {"authorization": f"Bearer {TOKEN}"}
        assert (await world.client.delete(path, headers=headers)).status_code == 200


async def test_a_key_of_an_admin_can_be_revoked_by_its_equal_and_is_out_at_once(world):
    """The admin plane asks the store at every call, so no gateway or cache has a say."""
    own = (await world.things())["own"]
    secret = await world.secret(own, PROJECT)
    headers = {"authorization": f"Bearer {secret}"}
    rows = (await world.client.get(f"{A}/keys", headers=headers)).json()["data"]
    me = next(one for one in rows if one["name"] == "admin")
    assert (await world.client.delete(f"{A}/keys/{me['id']}", headers=headers)).status_code == 200
    assert (await world.client.get(f"{A}/keys", headers=headers)).status_code == 401


async def test_every_change_names_its_author_and_the_answers_request_id(world):
    """A key by its id, the token as such; the request id of the answer finds the entry."""
    own = (await world.things())["own"]
    by_key = {"authorization": f"Bearer {await world.secret(own, ORGANIZATION)}"}
    by_token = {"authorization": f"Bearer {TOKEN}"}
    for headers, kind in ((by_key, "key"), (by_token, "admin_token")):
        answer = await world.client.put(f"{A}/projects/{own.project.id}/limits", json={"rpm": 7}, headers=headers)
        request_id = answer.headers["x-request-id"]
        (entry,) = (await world.client.get(f"{A}/audit?request_id={request_id}", headers=by_token)).json()["data"]
        assert (entry["actor_kind"], entry["action"], entry["after"]) == (kind, "limits.set", {"rpm": 7})
        if kind == "key":
            assert (await world.store.key(entry["actor"])).name == "admin"
    drained = await world.client.post(f"{A}/replicas/w-1/drain", headers=by_token)
    (entry,) = (await world.client.get(f"{A}/audit?request_id={drained.headers['x-request-id']}", headers=by_token)).json()["data"]  # fmt: skip
    assert (entry["action"], entry["subject_id"]) == ("replica.drained", "w-1")


async def test_a_person_of_two_organisations_has_both_and_names_one_for_sums(tmp_path, control, gateway):
    """The token's claims say where; a sum over several is asked for one by one."""
    async with (
        running_issuer() as issuer,
        await SqliteStore.open(tmp_path / "store.sqlite3") as store,
        await SqliteLedger.open(tmp_path / "ledger.sqlite3") as ledger,
    ):
        people = People(AdminSection(oidc_issuer=issuer.url, oidc_audience=AUDIENCE), KeySet(issuer.url))
        app = create_admin_app(store, control, TOKEN, usage=Usage(ledger, KEEP, lambda: NOW), people=people)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://admin") as client:
            world = World(store, ledger, gateway, client)
            one, two = (await world.things()), (await world.things())
            mine = [one["own"].organization.id, two["own"].organization.id]
            headers = {"authorization": f"Bearer {issuer.token(roles=['organization_admin'], organization=mine)}"}
            found = (await client.get(f"{A}/organizations", headers=headers)).json()["data"]
            assert [each["id"] for each in found] == mine
            assert len((await client.get(f"{A}/projects", headers=headers)).json()["data"]) == 4
            vague = await client.get(f"{A}/usage", headers=headers)
            assert (vague.status_code, vague.json()["error"]["param"]) == (400, "organization_id")
            clear = await client.get(f"{A}/usage?organization_id={mine[1]}", headers=headers)
            assert {each["group"] for each in clear.json()["data"]} == {two["own"].project.id, two["beside"].project.id}
            made = await client.post(f"{A}/projects", json={"name": "n", "organization_id": mine[0]}, headers=headers)
            (entry,) = (await client.get(f"{A}/audit?organization_id={mine[0]}&actor=ada", headers=headers)).json()[
                "data"
            ]
            assert (entry["actor_kind"], entry["subject_id"]) == ("person", made.json()["id"])
        await people.close()
