"""`GET /prefixes` and `warmlane prefixes`: who sees which project, page by page, and the table."""

import json

import msgspec
import pytest

from gateway.prefix_report import PlaceBody, PrefixList, PrefixRow
from policies.store import NewKey
from policies.tenant import Role
from tests.gateway.admin.conftest import TOKEN
from tests.gateway.admin.test_commands import url, warmlane  # noqa: F401 - fixtures

PLACE = PlaceBody("message", 0, "system", None, 37, 37, 90, 90 * 1590)


def answered(*rows):
    """What a gateway answers."""
    return msgspec.to_builtins(PrefixList(list(rows)))


def row(project, organization, model="m", *places):
    """A row of this project."""
    return PrefixRow(f"{project}:{model}", project, organization, model, 5.0, 100, 1, 2, 0, list(places), "none")


@pytest.fixture
async def things(store, gateway):
    """Two projects of one organisation and one of another, each with a row."""
    acme, other = [await store.create_organization(name) for name in ("acme", "other")]
    made = [await store.create_project("p", one.id) for one in (acme, acme, other)]
    gateway.will("GET", "/prefixes", answered(*(row(one.id, one.organization_id) for one in made)))
    return made


async def seen(admin, store, project, role, query=""):
    """Projects that a key of this role sees."""
    _, secret = await store.create_key(NewKey(project.id, "x", frozenset({role})))
    answer = await admin.get(f"/admin/v1/prefixes{query}", headers={"authorization": f"Bearer {secret.text}"})
    assert answer.status_code == 200, answer.text
    return {one["project_id"] for one in answer.json()["data"]}


@pytest.mark.parametrize(
    ("role", "expected"),
    [(Role.VIEWER, {0}), (Role.PROJECT_ADMIN, {0}), (Role.ORGANIZATION_ADMIN, {0, 1}), (Role.PLATFORM_ADMIN, {0, 1, 2})],
)  # fmt: skip
async def test_each_role_sees_its_own_projects_alone(admin, store, things, role, expected):
    """Another's prompts do not exist, whether asked for or not."""
    own = {things[number].id for number in expected}
    assert await seen(admin, store, things[0], role) == own
    foreign = things[2]
    for query in (f"?project_id={foreign.id}", f"?organization_id={foreign.organization_id}"):
        assert await seen(admin, store, things[0], role, query) == own & {foreign.id}


async def test_the_list_comes_page_by_page(admin, things):
    """By id; the cursor is the last row's."""
    found, after = [], ""
    while after is not None:
        page = (
            await admin.get("/admin/v1/prefixes", params={"limit": 1, **({"after": after} if after else {})})
        ).json()
        found += [one["project_id"] for one in page["data"]]
        after = page["next_cursor"]
    assert found == sorted(one.id for one in things)


async def test_a_gateway_that_answers_nonsense_is_a_503(admin, gateway):
    """As for every question."""
    gateway.will("GET", "/prefixes", {"data": 5})
    answer = await admin.get("/admin/v1/prefixes")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "gateway_unavailable")


async def test_the_command_draws_a_table_with_the_finding(warmlane, gateway):  # noqa: F811
    """A line a place, the words on the first; a project that is gone from the store is shown by its id."""
    other = PlaceBody("message", 3, "user", 1, 0, 127, 2, 10)
    gateway.will("GET", "/prefixes", answered(row("proj_x", "o", "m", PLACE, other), row("proj_y", "o")))
    result = await warmlane("prefixes")
    assert result.exit_code == 0, result.stderr
    head, first, second, third = (line.split("  ") for line in result.stdout.splitlines())
    assert head[0] == "project"
    cells = [[cell.strip() for cell in line if cell.strip()] for line in (first, second, third)]
    assert cells[0][:7] == ["proj_x", "m", "message 0 (system)", "37", "90", "100", "1590"]
    assert cells[0][7].startswith("most prompts differ") or cells[0][7] == "none"
    assert cells[1][:7] == ["proj_x", "m", "message 3 (user, part 1)", "0-127", "2", "100", "5"]
    assert cells[2][0] == "proj_y"


async def test_the_command_asks_for_one_project_by_name(warmlane, gateway):  # noqa: F811
    """And tells JSON as it came."""
    made = json.loads((await warmlane("org", "create", "--name", "acme", "--json")).stdout)
    project = json.loads((await warmlane("project", "create", "--org", "acme", "--name", "chat", "--json")).stdout)
    gateway.will("GET", "/prefixes", answered(row(project["id"], made["id"]), row("proj_x", "o")))
    for words in (("--project", "chat"), ("--org", "acme")):
        result = await warmlane("prefixes", *words, "--json")
        assert [one["project_id"] for one in json.loads(result.stdout)["data"]] == [project["id"]], result.stderr
    assert "chat" in (await warmlane("prefixes", "--project", "chat")).stdout
    nobody = await warmlane("prefixes", "--project", "none")
    assert (nobody.exit_code, "no project with the name" in nobody.stderr) == (1, True)


async def test_without_a_prompt_the_command_says_so(warmlane, gateway):  # noqa: F811
    """Not an empty table."""
    gateway.will("GET", "/prefixes", answered())
    assert (await warmlane("prefixes")).stdout == "no project has sent two prompts to a model yet\n"
    assert TOKEN not in (await warmlane("prefixes", "--help")).stdout
