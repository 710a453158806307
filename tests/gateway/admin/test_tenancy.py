"""Organisations, projects, keys and limits through the admin plane, from creation to revocation."""

import pytest
import structlog

from gateway.auth import AuthFailure, Directory
from policies.tenant import Principal

START = 1_700_000_000


async def test_an_organisation_is_made_read_and_listed(admin):
    """Bodies carry id, name and created_at."""
    made = await admin.post("/admin/v1/organizations", json={"name": "acme"})
    assert made.status_code == 201
    body = made.json()
    assert body == {"id": body["id"], "name": "acme", "created_at": START}
    assert body["id"].startswith("org_")
    assert (await admin.get(f"/admin/v1/organizations/{body['id']}")).json() == body
    assert (await admin.get("/admin/v1/organizations")).json() == {"data": [body], "next_cursor": None}


async def test_a_project_belongs_to_an_organisation(admin, organization, project):
    """The list can be narrowed to one organisation."""
    assert project["organization_id"] == organization["id"]
    assert (await admin.get(f"/admin/v1/projects/{project['id']}")).json() == project
    own = await admin.get("/admin/v1/projects", params={"organization_id": organization["id"]})
    assert own.json()["data"] == [project]
    other = await admin.get("/admin/v1/projects", params={"organization_id": "org_other"})
    assert other.json()["data"] == []


async def test_a_keys_secret_is_shown_once(admin, key):
    """Reading or listing a key must never show it again."""
    assert key["secret"].startswith(key["prefix"] + "-")
    read = (await admin.get(f"/admin/v1/keys/{key['id']}")).json()
    assert "secret" not in read
    assert read == {name: value for name, value in key.items() if name != "secret"}
    listed = await admin.get("/admin/v1/keys", params={"project_id": key["project_id"]})
    assert listed.json()["data"] == [read]
    assert key["secret"] not in listed.text
    assert read["roles"] == ["service"]


async def test_a_key_keeps_its_lanes_and_expiry(admin, project):
    """What was asked for is what is stored."""
    body = {
        "name": "night", "project_id": project["id"], "roles": ["service"],
        "max_lane": "standard", "default_lane": "bulk", "expires_at": START + 60,
    }  # fmt: skip
    made = (await admin.post("/admin/v1/keys", json=body)).json()
    assert {name: made[name] for name in body} == body


async def test_a_new_key_works_and_a_revoked_one_does_not_when_the_answer_comes(admin, gateway, store, key):
    """Revocation is at once: the gateways are nudged after the write and before the answer."""
    directory = Directory(store)
    headers = [(b"x-api-key", key["secret"].encode())]
    await directory.refresh()
    assert isinstance(directory.authenticate(headers, START), Principal)
    gateway.asked.clear()
    revoked = await admin.delete(f"/admin/v1/keys/{key['id']}")
    assert revoked.json()["revoked_at"] == START
    assert revoked.headers["x-warmlane-applied"] == "true"
    assert [(method, path) for method, path, _ in gateway.asked] == [("POST", "/directory/refresh")]
    await directory.refresh()
    assert isinstance(directory.authenticate(headers, START), AuthFailure)


async def test_a_change_that_no_gateway_confirms_is_made_and_says_so(admin, gateway, key):
    """The write is done and the gateways follow by themselves; the answer must not claim more."""
    gateway.will("POST", "/directory/refresh", status=500)
    with structlog.testing.capture_logs() as logs:
        revoked = await admin.delete(f"/admin/v1/keys/{key['id']}")
    assert (revoked.status_code, revoked.headers["x-warmlane-applied"]) == (200, "false")
    assert [log["event"] for log in logs] == ["admin.change_not_confirmed", "admin.changed"]
    assert (await admin.get(f"/admin/v1/keys/{key['id']}")).json()["revoked_at"] == START


async def test_a_change_is_logged_without_its_secret(admin, project):
    """Who changed what may be logged; a secret may not."""
    with structlog.testing.capture_logs() as logs:
        made = (await admin.post("/admin/v1/keys", json={"name": "laptop", "project_id": project["id"]})).json()
    assert [(log["event"], log["change"], log["subject"]) for log in logs] == [
        ("admin.changed", "key.created", made["id"])
    ]
    assert made["secret"] not in repr(logs)


async def test_a_rotation_shows_a_new_secret_and_may_keep_the_old_one(admin, store, key):
    """The overlap is for fleets of clients; without one the old secret ends."""
    rotated = await admin.post(f"/admin/v1/keys/{key['id']}/rotate", json={"overlap_s": 60})
    assert rotated.status_code == 200
    assert rotated.json()["id"] == key["id"]
    assert rotated.json()["secret"] != key["secret"]
    assert len((await store.snapshot()).digests) == 2
    assert (await admin.post(f"/admin/v1/keys/{key['id']}/rotate")).status_code == 200
    assert len((await store.snapshot()).digests) == 1


async def test_a_revoked_key_cannot_be_rotated(admin, key):
    """A conflict, not a fault of ours."""
    await admin.delete(f"/admin/v1/keys/{key['id']}")
    refused = await admin.post(f"/admin/v1/keys/{key['id']}/rotate")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "key_ended")


@pytest.mark.parametrize("level", ["organizations", "projects"])
async def test_a_limits_document_is_taken_and_answered(admin, organization, project, level):
    """PUT takes and answers the document; what is absent stays absent, null stays null."""
    of = organization if level == "organizations" else project
    path = f"/admin/v1/{level}/{of['id']}/limits"
    assert (await admin.get(path)).json() == {}
    document = {"rpm": None, "concurrency": {"bulk": 0}, "max_lane": "standard"}
    answer = await admin.put(path, json=document)
    assert (answer.status_code, answer.json()) == (200, document)
    assert (await admin.get(path)).json() == document


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e309", '"5"', "true", "1" * 30])
async def test_a_limit_that_is_not_a_number_is_400_by_name(admin, project, value):
    """P15 through the admin API: refused with the field, the stored document unchanged."""
    path = f"/admin/v1/projects/{project['id']}/limits"
    refused = await admin.put(path, content=b'{"rpm": ' + value.encode() + b"}")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "rpm"
    assert (await admin.get(path)).json() == {}


async def test_a_limit_that_is_not_known_is_400_by_name(admin, project):
    """Nothing may be stored that does not hold."""
    refused = await admin.put(f"/admin/v1/projects/{project['id']}/limits", json={"tokens_per_year": 5})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tokens_per_year"


BAD_BODIES = [
    ("organizations", {}, "name"),
    ("organizations", {"name": ""}, "name"),
    ("organizations", {"name": 5}, "name"),
    ("organizations", {"name": "a\nb"}, "name"),
    ("organizations", {"name": "a\n"}, "name"),
    ("organizations", {"name": "x" * 129}, "name"),
    ("organizations", {"name": "a", "id": "org_mine"}, "id"),
    ("organizations", [], None),
    ("projects", {"name": "a"}, "organization_id"),
    ("projects", {"name": "a", "organization_id": "org_none"}, "organization_id"),
    ("keys", {"name": "a", "project_id": "proj_none"}, "project_id"),
    ("keys", {"name": "a", "project_id": "p", "roles": ["admin"]}, "roles[0]"),
    ("keys", {"name": "a", "project_id": "p", "roles": []}, "roles"),
    ("keys", {"name": "a", "project_id": "p", "max_lane": "fast"}, "max_lane"),
    ("keys", {"name": "a", "project_id": "p", "max_lane": "bulk", "default_lane": "standard"}, "default_lane"),
    ("keys", {"name": "a", "project_id": "p", "expires_at": START}, "expires_at"),
    ("keys", {"name": "a", "project_id": "p", "expires_at": 10**30}, "expires_at"),
    ("keys", {"name": "a", "project_id": "p", "expires_at": "2030-01-01"}, "expires_at"),
    ("keys", {"name": "a", "project_id": "p", "expires_at": True}, "expires_at"),
]


@pytest.mark.parametrize(("path", "body", "param"), BAD_BODIES)
async def test_a_bad_body_is_400_and_names_the_field(admin, store, path, body, param):
    """An administrator must see which field is wrong, and nothing may be made."""
    refused = await admin.post(f"/admin/v1/{path}", json=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, param)
    assert set(error) == {"message", "type", "param", "code"}
    assert await store.revision() == 0


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b'{"name": "\xff"}', b'{"name": "\\ud800"}', b"[" * 100_000, b'{"name": NaN}']
)
async def test_a_body_that_is_not_json_is_400(admin, body):
    """Broken bytes must not become an error of ours."""
    assert (await admin.post("/admin/v1/organizations", content=body)).status_code == 400


@pytest.mark.parametrize("overlap", ["-1", "NaN", "1e309", '"5"', "true", "2592001"])
async def test_a_bad_overlap_is_400(admin, key, overlap):
    """P15: an overlap of infinity would be a second key for ever."""
    refused = await admin.post(
        f"/admin/v1/keys/{key['id']}/rotate", content=b'{"overlap_s": ' + overlap.encode() + b"}"
    )
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "overlap_s")


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("GET", "organizations/org_x", "organization"),
        ("GET", "organizations/org_x/limits", "organization"),
        ("PUT", "organizations/org_x/limits", "organization"),
        ("GET", "projects/proj_x", "project"),
        ("GET", "projects/proj_x/limits", "project"),
        ("PUT", "projects/proj_x/limits", "project"),
        ("GET", "keys/key_x", "key"),
        ("DELETE", "keys/key_x", "key"),
        ("POST", "keys/key_x/rotate", "key"),
        ("GET", "keys/%00%0a", "key"),
    ],
)
async def test_an_unknown_id_is_404(admin, method, path, kind):
    """What does not exist is not found, whatever is asked of it."""
    answer = await admin.request(method, f"/admin/v1/{path}", content=b"{}" if method != "GET" else None)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, f"unknown_{kind}")


async def test_lists_come_in_pages(admin):
    """`next_cursor` is the next `after`, and null at the end."""
    made = [(await admin.post("/admin/v1/organizations", json={"name": f"o{n}"})).json()["id"] for n in range(5)]
    seen, query = [], {"limit": "2"}
    while True:
        page = (await admin.get("/admin/v1/organizations", params=query)).json()
        seen += [one["id"] for one in page["data"]]
        if page["next_cursor"] is None:
            break
        query["after"] = page["next_cursor"]
    assert seen == made


@pytest.mark.parametrize("path", ["organizations", "projects", "keys"])
@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("limit=", "limit"),
        ("limit=-1", "limit"),
        ("limit=%C2%B2", "limit"),
        ("limit=1&limit=2", "limit"),
        ("after=key_none", "after"),
        ("colour=red", "colour"),
    ],
)
async def test_a_bad_query_is_400_and_names_the_parameter(admin, path, query, param):
    """A misspelt filter must not silently list everything."""
    refused = await admin.get(f"/admin/v1/{path}?{query}")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
