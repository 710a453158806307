"""What a team sees with its own key: its own limits, usage and requests, and nothing of anybody else's."""

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from gateway.api.own import LOOKS_AGAIN_S, Own
from gateway.auth import Directory
from gateway.recorder import Recorder
from observability.metrics import Metrics
from observability.records import RequestRecord
from policies.lane import Lane
from policies.ledger import LedgerRow, Retention
from policies.meters import Moment
from policies.quota import Quotas
from policies.reservation import Expected
from policies.sqlite_ledger import SqliteLedger
from policies.sqlite_store import SqliteStore
from policies.store import Level, NewKey

NOW = 1_800_000_000.0
KEEP = Retention(30, 400)


def row(number, project, **fields):
    """A finished request."""
    return LedgerRow(
        request_id=f"req_{number}",
        started_at=NOW - 60,
        ended_at=NOW - 58.5,
        organization="org",
        project=project,
        key="key",
        model=fields.pop("model", "small-a"),
        lane="interactive",
        surface="/v1/completions",
        outcome="finished",
        status=200,
        **fields,
    )


class Teams:
    """Two projects with a key each, and what they may ask."""

    def __init__(self, app, own, ledger, projects, secrets):
        self.own = own
        self.ledger = ledger
        self.projects = projects
        self._secrets = secrets
        self._app = app

    async def get(self, path, team=0, **headers):
        """The answer to a team's question; no team: no key."""
        transport = httpx.ASGITransport(app=self._app)
        if team is not None:
            headers["authorization"] = f"Bearer {self._secrets[team]}"
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            return await client.get(f"/v1{path}", headers=headers)


@pytest.fixture
async def teams(tmp_path):
    async with (
        await SqliteStore.open(tmp_path / "store.sqlite3", lambda: NOW) as store,
        await SqliteLedger.open(tmp_path / "ledger.sqlite3") as ledger,
    ):
        organization = await store.create_organization("o")
        projects = [await store.create_project(name, organization.id) for name in ("alder", "birch")]
        secrets = [(await store.create_key(NewKey(one.id, "k")))[1].text for one in projects]
        document = b'{"rpm": 10, "usd_per_month": 2, "concurrency": {"bulk": 3}, "shadow": true, "models": ["small-a"]}'
        document = document[:-1] + b', "surfaces": ["/v1/completions"], "batch_cap": {"bulk": 2}, "weight": 3}'
        await store.set_limits(Level.PROJECT, projects[0].id, document)
        await store.set_limits(Level.ORGANIZATION, organization.id, b'{"tokens_per_day": 1000}')
        directory = Directory(store)
        await directory.refresh()
        recorder = Recorder(Metrics(frozenset, lambda: ()))
        own = Own(directory, Quotas(), recorder, ledger, KEEP, clock=lambda: 500.0, unix=lambda: NOW)
        app = Starlette(routes=own.routes())
        yield Teams(app, own, ledger, [one.id for one in projects], secrets)


async def test_another_projects_requests_do_not_exist(teams):
    """404 for another's id as for one that never was, with the same words."""
    await teams.ledger.add(
        [row(1, teams.projects[0], queue_s=0.5, ttft_s=1.0, prompt_tokens=9), row(2, teams.projects[1])]
    )
    mine = await teams.get("/requests/req_1")
    assert mine.status_code == 200
    assert mine.json() == {
        "id": "req_1",
        "created_at": NOW - 60,
        "model": "small-a",
        "lane": "interactive",
        "outcome": "finished",
        "status": 200,
        "reason": None,
        "limit": None,
        "queue_s": 0.5,
        "ttft_s": 1.0,
        "duration_s": 1.5,
        "prompt_tokens": 9,
        "cached_tokens": None,
        "completion_tokens": None,
        "charged_tokens": 0,
        "cost_usd": None,
        "is_estimated": False,
        "recovered": False,
    }
    theirs, nobodys = await teams.get("/requests/req_2"), await teams.get("/requests/req_3")
    assert (theirs.status_code, theirs.content) == (404, nobodys.content)
    assert (await teams.get("/requests/req_2", team=1)).status_code == 200


async def test_a_request_that_ended_just_now_is_known(teams):
    """Also before the ledger has taken it, and still for its own project alone."""
    record = RequestRecord(
        request_id="req_9",
        started_at=NOW,
        surface="/v1/completions",
        model="small-a",
        organization="org",
        project=teams.projects[0],
        outcome="refused",
        status=429,
        reason="tpm",
        limit="project.tpm",
        duration_s=0.1,
        cost_nanousd=2_500,
    )
    teams.own._recorder.add(record, None)
    found = (await teams.get("/requests/req_9")).json()
    assert (found["outcome"], found["reason"], found["limit"]) == ("refused", "tpm", "project.tpm")
    assert found["cost_usd"] == 2.5e-6
    assert (await teams.get("/requests/req_9", team=1)).status_code == 404
    teams.own._recorder.flush()


async def test_usage_is_the_projects_own(teams):
    """By day unless asked otherwise."""
    await teams.ledger.add(
        [
            row(1, teams.projects[0], charged_tokens=5),
            row(2, teams.projects[0], model="small-b", charged_tokens=6),
            row(3, teams.projects[1], charged_tokens=7),
        ]
    )
    (day,) = (await teams.get("/usage")).json()["data"]
    assert (day["group"], day["charged_tokens"], day["requests"]) == ("2027-01-15", 11, 2)
    models = (await teams.get("/usage?group_by=model&limit=1")).json()
    assert ([one["group"] for one in models["data"]], models["next_cursor"]) == (["small-a"], "small-a")
    rest = (await teams.get("/usage?group_by=model&after=small-a")).json()
    assert [one["group"] for one in rest["data"]] == ["small-b"]
    (project,) = (await teams.get("/usage?group_by=project")).json()["data"]
    assert project["group"] == teams.projects[0]
    assert (await teams.get("/usage?from=2027-01-16&to=2027-01-17")).json()["data"] == []


@pytest.mark.parametrize(
    "query",
    [
        "project_id=proj_x",
        "key_id=key_x",
        "group_by=secret",
        "from=yesterday",
        "from=2027-01-02&to=2027-01-01",
        "to=2027-01-15T08:00:00",
        "to=-1",
        "from=9999999999999",
        "limit=0",
        "limit=1&limit=2",
        "after=nonsense",
        "from=٣",
    ],
)
async def test_what_cannot_be_asked_is_refused_by_name(teams, query):
    """A filter that is not known must not be passed over: the answer would be another."""
    refused = await teams.get(f"/usage?{query}")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"]


async def test_limits_tell_what_is_used_and_what_is_left(teams):
    """Those of the project and of its organisation, money in dollars; what is only watched is marked."""
    tenant = teams.own._directory.tenant(teams.projects[0])
    moment = Moment(500.0, NOW)
    reservation = teams.own._quotas.reserve(tenant, Lane.BULK, moment)
    assert reservation.hold(Expected(100, 90, 500_000_000, 400_000_000), moment) is None
    answer = (await teams.get("/limits")).json()
    found = {(one["scope"], one["limit"], one["lane"]): one for one in answer["data"]}
    assert found["project", "rpm", None] | {"reset_s": 0} == {
        "limit": "rpm",
        "lane": None,
        "scope": "project",
        "most": 10,
        "used": 1,
        "remaining": 9,
        "reset_s": 0,
        "shadow": True,
    }
    money = found["project", "usd_per_month", None]
    assert (money["most"], money["used"], money["remaining"]) == (2.0, 0.5, 1.5)
    bulk = found["project", "concurrency", "bulk"]
    assert (bulk["most"], bulk["used"], bulk["reset_s"]) == (3, 1, None)
    day = found["organization", "tokens_per_day", None]
    assert (day["used"], day["remaining"], day["shadow"]) == (100, 900, False)
    assert (answer["models"], answer["max_lane"]) == (["small-a"], "interactive")
    other = (await teams.get("/limits", team=1)).json()
    assert [(one["scope"], one["used"]) for one in other["data"]] == [("organization", 100), ("project", 0)]
    assert (answer["surfaces"], answer["batch_cap"], answer["weight"]) == (["/v1/completions"], {"bulk": 2}, 3)
    assert (other["models"], other["surfaces"], other["batch_cap"], other["weight"]) == (None, None, {}, 1)
    assert (answer["time_zone"], other["time_zone"]) == ("UTC", "UTC")
    reservation.undo(moment)


@pytest.mark.parametrize("path", ["/limits", "/usage", "/requests/req_1"])
async def test_without_a_key_nothing_is_told(teams, path):
    """401, whatever is asked."""
    refused = await teams.get(path, team=None)
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "missing_api_key")


async def test_a_ledger_that_is_away_is_said_so(teams):
    """503 with a time to come back; what is remembered is told all the same."""
    await teams.ledger.close()
    for path in ("/usage", "/requests/req_1"):
        refused = await teams.get(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "ledger_unavailable")
        assert refused.headers["retry-after"] == "1"
    assert (await teams.get("/limits")).status_code == 200


async def test_a_gateway_without_a_ledger_has_no_usage(teams):
    """It tells what it remembers, and of the rest that it cannot."""
    teams.own._ledger = None
    assert (await teams.get("/usage")).status_code == 503
    assert (await teams.get("/requests/req_1")).status_code == 404
    assert msgspec.json.decode((await teams.get("/limits")).content)


@pytest.fixture
def shared(teams, monkeypatch):
    """The same where other gateways serve too: seconds of waiting are counted, and rows come while it waits."""
    waited = []
    arrivals = {}

    async def sleep(seconds):
        waited.append(seconds)
        await teams.ledger.add(arrivals.get(len(waited), []))

    monkeypatch.setattr("gateway.api.own.asyncio.sleep", sleep)
    monkeypatch.setattr(teams.own, "_looks_again_s", LOOKS_AGAIN_S)
    teams.waited, teams.arrivals = waited, arrivals
    return teams


@pytest.mark.parametrize("look", [1, 2, 4])
async def test_a_request_that_another_gateway_served_just_now_is_waited_for(shared, look):
    """Its row comes a moment after its end; who asks before has it a moment later, not 404."""
    shared.arrivals[look] = [row(5, shared.projects[0])]
    assert (await shared.get("/requests/req_5")).status_code == 200
    assert shared.waited == list(LOOKS_AGAIN_S[:look])


async def test_a_foreign_request_takes_as_long_to_be_denied_as_one_that_never_was(shared):
    """Neither the words nor the time say that an id exists; the wait is bounded by a second."""
    await shared.ledger.add([row(6, shared.projects[1])])
    theirs = await shared.get("/requests/req_6")
    for_theirs, shared.waited[:] = list(shared.waited), []
    nobodys = await shared.get("/requests/req_7")
    assert (theirs.status_code, theirs.content) == (nobodys.status_code, nobodys.content)
    assert for_theirs == shared.waited == list(LOOKS_AGAIN_S)
    assert sum(LOOKS_AGAIN_S) <= 1


async def test_one_gateway_alone_does_not_wait(teams, monkeypatch):
    """It knows what it served."""
    monkeypatch.setattr("gateway.api.own.asyncio.sleep", None)
    assert (await teams.get("/requests/req_8")).status_code == 404
