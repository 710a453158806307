"""Usage on the admin plane and in the shell: the contract's rows, pages, periods, and files."""

import asyncio
import csv
import importlib
import json
import os
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import structlog
import typer
from typer.testing import CliRunner

from gateway.admin.app import create_admin_app
from gateway.admin.commands import mount
from gateway.admin.usage import Usage
from gateway.admin.usage_export import COLUMNS, NO_PYARROW
from gateway.admin_listener import serving
from policies.ledger import DAY_S, LedgerRow, Retention
from policies.sqlite_ledger import SqliteLedger
from policies.sqlite_store import SqliteStore

TOKEN = "admin-token-0123456789"
NOW = datetime(2026, 11, 30, 12, 30, tzinfo=UTC).timestamp()
KEEP = Retention(30, 400)

cli = typer.Typer()
mount(cli)


def row(number, at=NOW - 60, **fields):
    """A finished request of proj_a."""
    whole = {
        "organization": "org_a",
        "project": "proj_a",
        "key": "key_a",
        "model": "small-a",
        "lane": "interactive",
        "outcome": "finished",
        **fields,
    }
    return LedgerRow(
        request_id=f"req_{number:05}", started_at=at, ended_at=at + 1, surface="/v1/completions", status=200, **whole
    )


@pytest.fixture
async def ledger(tmp_path):
    async with await SqliteLedger.open(tmp_path / "ledger.sqlite3") as opened:
        yield opened


@pytest.fixture
async def plane(tmp_path, ledger, control):
    """An admin plane with one project, chat of acme."""
    async with await SqliteStore.open(tmp_path / "store.sqlite3") as store:
        organization = await store.create_organization("acme")
        await store.create_project("chat", organization.id)
        yield create_admin_app(store, control, TOKEN, usage=Usage(ledger, KEEP, lambda: NOW))


@pytest.fixture
async def url(plane):
    """The plane on a port of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    with structlog.testing.capture_logs():
        async with serving(plane, listener):
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def get(plane):
    """The answer to a question to the admin plane."""

    async def ask(path):
        transport = httpx.ASGITransport(app=plane)
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://admin", headers=headers) as client:
            return await client.get(f"/admin/v1{path}")

    return ask


@pytest.fixture
def warmlane(url, tmp_path, monkeypatch):
    """Runs one command line; the answer has exit_code, stdout and stderr."""
    monkeypatch.setenv("WARMLANE_ADMIN_URL", url)
    monkeypatch.setenv("WARMLANE_ADMIN_TOKEN", TOKEN)
    monkeypatch.setenv("WARMLANE_HOME", str(tmp_path))

    async def run(*words):
        return await asyncio.to_thread(CliRunner().invoke, cli, list(words))

    return run


async def test_a_row_has_what_the_contract_says(get, ledger):
    """Names and shapes are public."""
    counts = {"prompt_tokens": 9, "cached_tokens": 4, "completion_tokens": 2, "charged_tokens": 7}
    await ledger.add([row(1, cost_nanousd=1_500_000_000, **counts), row(2, outcome="refused")])
    assert (await get("/usage")).json() == {
        "data": [{"group": "proj_a", "requests": 2, "refused": 1, "cost_usd": 1.5, **counts}],
        "next_cursor": None,
    }


@pytest.mark.parametrize(
    ("group_by", "groups"),
    [
        ("organization", ["org_a", "org_b"]),
        ("project", ["proj_a", "proj_b"]),
        ("key", ["key_a", "key_b"]),
        ("model", ["small-a", "small-b"]),
        ("lane", ["bulk", "interactive"]),
        ("day", ["2026-11-29", "2026-11-30"]),
    ],
)
async def test_it_is_summed_by_any_group(get, ledger, group_by, groups):
    """Also page by page."""
    other = {"organization": "org_b", "project": "proj_b", "key": "key_b", "model": "small-b", "lane": "bulk"}
    await ledger.add([row(1), row(2, at=NOW - DAY_S, **other)])
    first = (await get(f"/usage?group_by={group_by}&limit=1")).json()
    second = (await get(f"/usage?group_by={group_by}&after={first['next_cursor']}")).json()
    assert [one["group"] for one in first["data"] + second["data"]] == groups
    assert second["next_cursor"] is None


@pytest.mark.parametrize(
    ("query", "requests"),
    [
        ("", 2),
        ("from=2026-11-30", 1),
        ("from=2026-11-29&to=2026-11-30", 1),
        ("from=2026-11-30T12:00:00Z&to=2026-11-30T13:30:00%2B01:00", 1),
        ("from=1&to=4000000000", 3),
        ("model=small-b", 1),
        ("lane=interactive&organization_id=org_a&project_id=proj_a&key_id=key_a", 2),
        ("project_id=proj_x", 0),
    ],
)
async def test_a_period_and_filters_narrow_it(get, ledger, query, requests):
    """By default it is the last 30 days; `to` is not in the period."""
    await ledger.add([row(1), row(2, at=NOW - DAY_S, model="small-b"), row(3, at=NOW - 100 * DAY_S)])
    found = (await get(f"/usage?{query}")).json()["data"]
    assert sum(one["requests"] for one in found) == requests


async def test_long_ago_it_is_known_by_the_day(get, ledger):
    """Hours are kept for two months: an older period is widened to whole days instead of missing its ends."""
    await ledger.add([row(1, at=NOW - 100 * DAY_S)])
    while await ledger.purge(NOW, KEEP):
        pass
    instant = int(NOW - 100 * DAY_S)
    found = (await get(f"/usage?from={instant}&to={instant + 1}")).json()["data"]
    assert [one["requests"] for one in found] == [1]


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/usage?group_by=secret", "group_by"),
        ("/usage?from=tomorrow", "from"),
        ("/usage?to=2026-02-30", "to"),
        ("/usage?from=2026-11-30&to=2026-11-30", "from"),
        ("/usage?group_by=day&after=x", "after"),
        ("/usage?user=alice", "user"),
        ("/usage/requests?after=x", "after"),
        ("/usage/requests?group_by=day", "group_by"),
        ("/usage?from=2026-11-30T08:00:00", "from"),
        ("/usage?to=0001-01-01T00:00:00Z", "to"),
        ("/usage?to=9999-12-31T23:59:59-23:59", "to"),
    ],
)
async def test_what_cannot_be_asked_is_refused_by_name(get, path, param):
    """400 with the parameter."""
    refused = await get(path)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_requests_are_listed_in_pages(get, ledger):
    """Every field is there, null where nothing is known."""
    await ledger.add([row(number) for number in range(3)])
    first = (await get("/usage/requests?limit=2")).json()
    second = (await get(f"/usage/requests?after={first['next_cursor']}")).json()
    found = first["data"] + second["data"]
    assert [one["request_id"] for one in found] == ["req_00000", "req_00001", "req_00002"]
    assert set(found[0]) == set(COLUMNS)
    assert (found[0]["cost_usd"], found[0]["recovered"]) == (None, False)


async def test_one_request_is_read_by_its_id(get, ledger):
    """Also long after the gateway that served it has forgotten it."""
    await ledger.add([row(7, reason="rpm", recovered=True)])
    found = (await get("/usage/requests/req_00007")).json()
    assert (found["reason"], found["recovered"]) == ("rpm", True)
    missing = await get("/usage/requests/req_8")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_request")


async def test_openapi_knows_it(get):
    """A client can be made from the document."""
    paths = (await get("/openapi.json")).json()["paths"]
    named = {one["name"] for one in paths["/admin/v1/usage"]["get"]["parameters"]}
    assert {"group_by", "from", "to", "project_id", "limit", "after"} <= named


async def test_the_shell_shows_a_table(warmlane, ledger):
    """One line a group, with the sums."""
    await ledger.add([row(1, charged_tokens=1234, cost_nanousd=2_500_000)])
    shown = await warmlane("usage", "--group-by", "model")
    assert shown.exit_code == 0, shown.output
    heading, line = shown.stdout.splitlines()
    assert heading.split() == [
        "group", "requests", "refused", "prompt", "cached", "completion", "charged", "cost_usd",
    ]  # fmt: skip
    assert line.split() == ["small-a", "1", "0", "0", "0", "0", "1234", "0.002500"]
    assert "nothing was used" in (await warmlane("usage", "--from", "2020-01-01", "--to", "2020-01-02")).stdout


async def test_who_never_said_a_model_has_a_row_too(warmlane, ledger):
    """Refused before it was read: an empty cell would look like a broken table."""
    await ledger.add([row(1, model="", outcome="refused")])
    line = (await warmlane("usage", "--group-by", "model")).stdout.splitlines()[1]
    assert line.split()[:3] == ["-", "1", "1"]


async def test_a_request_that_no_replica_got_says_why_it_has_no_receipt(warmlane, ledger):
    """Whoever asks is told the limit, not that receipts are short-lived; one that had a replica is told that."""
    await ledger.add(
        [
            row(1, outcome="refused", reason="rpm", limit="project.rpm", attempts=0),
            row(2, attempts=1),
        ]
    )
    refused = await warmlane("receipt", "req_00001")
    assert refused.exit_code == 1
    assert "was never sent to a replica; it ended as refused (200, project.rpm)" in refused.stderr
    assert "receipts live in memory" in (await warmlane("receipt", "req_00002")).stderr


async def test_the_shell_names_projects(warmlane, ledger, url):
    """People know names, not ids."""
    listed = json.loads((await warmlane("project", "list", "--json")).stdout)["data"]
    await ledger.add([row(1, project=listed[0]["id"])])
    assert "chat" in (await warmlane("usage", "--project", "chat")).stdout
    as_json = json.loads((await warmlane("usage", "--org", "acme", "--json")).stdout)
    assert as_json == {"data": []}


async def test_options_before_a_subcommand_are_refused(warmlane):
    """They would be believed, and not heard."""
    refused = await warmlane("usage", "--from", "2026-11-01", "export", "--out", "x.csv")
    assert refused.exit_code == 2
    assert "after `export`" in refused.output


async def test_csv_has_every_request_and_no_formula(warmlane, ledger, tmp_path):
    """A model's name is chosen by whoever asks; a spreadsheet must not run it."""
    await ledger.add([row(number) for number in range(2500)] + [row(9999, model='=HYPERLINK("x")', reason="é, \n")])
    out = tmp_path / "rows.csv"
    done = await warmlane("usage", "export", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert f"2501 requests are in {out}" in done.stdout
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2501
    assert list(rows[0]) == list(COLUMNS)
    assert (rows[-1]["model"], rows[-1]["reason"]) == ('\'=HYPERLINK("x")', "é, \n")
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


async def test_a_file_that_cannot_be_written_is_one_sentence(warmlane, tmp_path):
    """And nothing is left behind."""
    failed = await warmlane("usage", "export", "--out", str(tmp_path / "nowhere" / "rows.csv"))
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert "cannot be written: No such file or directory" in failed.stderr


async def test_only_a_regular_file_is_replaced(warmlane, ledger, tmp_path):
    """Not a device or a pipe, which would be gone; of a link, what it leads to. `-` is no file."""
    await ledger.add([row(1)])
    pipe, kept, link = tmp_path / "pipe", tmp_path / "kept.csv", tmp_path / "link.csv"
    os.mkfifo(pipe)
    kept.write_text("old")
    link.symlink_to(kept)
    for out in (pipe, tmp_path, "-"):
        failed = await warmlane("usage", "export", "--out", str(out))
        assert failed.exit_code in {1, 2}
        assert "no regular file" in failed.stderr or "directory" in failed.stderr
    assert pipe.is_fifo()
    assert (await warmlane("usage", "export", "--out", str(link))).exit_code == 0
    assert link.is_symlink()
    assert len(kept.read_text().splitlines()) == 2


@pytest.fixture
async def chat_id(warmlane):
    """The id of the project chat."""
    return json.loads((await warmlane("project", "list", "--json")).stdout)["data"][0]


async def test_limits_are_tried_on_the_past(warmlane, ledger, chat_id, tmp_path):
    """What they would have refused, by limit, and nothing is changed."""
    whose = {"project": chat_id["id"], "organization": chat_id["organization_id"], "attempts": 1}
    await ledger.add([row(n, at=NOW - 100 + n, charged_tokens=10, cost_nanousd=3, **whose) for n in range(5)])
    await ledger.add([row(n, at=NOW - 50, **whose | {"project": "proj_else"}) for n in range(5, 9)])
    document = tmp_path / "limits.json"
    document.write_text('{"rpm": 3, "concurrency": {"interactive": 100}}')
    period = ("--from", "2026-11-30", "--to", "2026-12-01")
    words = ("limits", "simulate", "--project", "chat", "--document", str(document), *period)
    shown = await warmlane(*words)
    assert shown.exit_code == 0, shown.output
    first, heading, line = shown.stdout.splitlines()
    assert first == "of 5 requests 2 would have been refused, 2 of which were served; 0 were refused then"
    assert heading.split() == ["limit", "requests", "share", "charged_tokens", "first_at"]
    assert line.split()[:4] == ["project.rpm", "2", "40.0%", "20"]
    told = json.loads((await warmlane(*words, "--json")).stdout)
    assert told["by_limit"] == [
        {"limit": "project.rpm", "requests": 2, "share": 0.4, "charged_tokens": 20, "first_at": NOW - 97}
    ]
    document.write_text("{}")
    assert (await warmlane(*words)).stdout.startswith("of 5 requests 0 would have been refused")
    assert json.loads((await warmlane("limits", "get", "--project", "chat", "--json")).stdout) == {}


async def test_the_first_day_of_a_trial_counts_what_was_used_before_it(warmlane, ledger, chat_id, tmp_path):
    """The period begins in the middle of a day that has used up half of its tokens."""
    whose = {"project": chat_id["id"], "organization": chat_id["organization_id"], "attempts": 1}
    used = {"charged_tokens": 10, "prompt_tokens": 8, "completion_tokens": 2, "reserved_tokens": 10}
    await ledger.add([row(n, at=NOW - 3600 + n, **used, **whose) for n in range(3)])
    await ledger.add([row(n, at=NOW - 100 + n, **used, **whose) for n in range(3, 8)])
    document = tmp_path / "limits.json"
    document.write_text('{"tokens_per_day": 60}')
    period = ("--from", str(int(NOW - 200)), "--to", str(int(NOW)))
    words = ("limits", "simulate", "--project", "chat", "--document", str(document), *period, "--json")
    told = json.loads((await warmlane(*words)).stdout)
    assert (told["requests"], told["refused"]) == (5, 2)
    assert told["by_limit"][0]["first_at"] == NOW - 100 + 6


@pytest.mark.parametrize("period", [("--from", "soon"), ("--from", "2026-11-30", "--to", "2026-11-01")])
async def test_a_period_that_is_none_is_one_sentence(warmlane, tmp_path, period):
    """And says how one is written."""
    document = tmp_path / "limits.json"
    document.write_text("{}")
    failed = await warmlane("limits", "simulate", "--project", "chat", "--document", str(document), *period)
    assert failed.exit_code == 1
    assert len(failed.stderr.splitlines()) == 1


async def test_a_document_that_is_none_is_one_sentence(warmlane, tmp_path):
    """As where it is set."""
    document = tmp_path / "limits.json"
    words = ("limits", "simulate", "--project", "chat", "--document", str(document))
    missing = await warmlane(*words)
    assert (missing.exit_code, missing.stderr) == (1, f"warmlane: cannot read {document}: No such file or directory\n")
    document.write_text('{"rpm": -1}')
    failed = await warmlane(*words)
    assert failed.exit_code == 1
    assert "a limits document" in failed.stderr


async def test_without_pyarrow_parquet_says_what_to_install(warmlane, tmp_path, monkeypatch):
    """It is large, and most do without."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    failed = await warmlane("usage", "export", "--format", "parquet", "--out", str(tmp_path / "rows.parquet"))
    assert (failed.exit_code, failed.stderr) == (1, f"warmlane: {NO_PYARROW}\n")
    assert not (tmp_path / "rows.parquet").exists()


async def test_the_files_name_says_what_it_is(warmlane, ledger, tmp_path, monkeypatch):
    """CSV under the name of a Parquet file is found out by whoever opens it, months later."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    failed = await warmlane("usage", "export", "--out", str(tmp_path / "rows.parquet"))
    assert (failed.exit_code, failed.stderr) == (1, f"warmlane: {NO_PYARROW}\n")
    for words in (("--out", str(tmp_path / "rows.txt")), ("--out", str(tmp_path / "a.parquet"), "--format", "csv")):
        assert (await warmlane("usage", "export", *words)).exit_code == 0
        assert (await asyncio.to_thread(Path(words[1]).read_text)).startswith("request_id,")
    wrong = await warmlane("usage", "export", "--format", "xlsx", "--out", str(tmp_path / "a"))
    assert (wrong.exit_code, "csv or parquet" in wrong.stderr) == (2, True)


async def test_parquet_has_every_request_with_its_types(warmlane, ledger, tmp_path):
    """Numbers are numbers, and what nobody knows is null."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    await ledger.add([row(number, cost_nanousd=5, prompt_tokens=7) for number in range(1500)] + [row(9999)])
    out = tmp_path / "rows.parquet"
    done = await warmlane("usage", "export", "--format", "parquet", "--out", str(out), "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"file": str(out), "rows": 1501}
    table = await asyncio.to_thread(parquet.read_table, out)
    assert table.column_names == list(COLUMNS)
    rows = table.to_pylist()
    assert (rows[0]["prompt_tokens"], rows[0]["cost_usd"], rows[0]["recovered"]) == (7, 5e-9, False)
    assert (rows[-1]["prompt_tokens"], rows[-1]["cost_usd"], rows[-1]["replica"]) == (None, None, None)
    assert importlib.import_module("pyarrow").types.is_int64(table.schema.field("charged_tokens").type)
