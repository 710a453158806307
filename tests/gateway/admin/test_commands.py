"""The admin commands against a real admin plane: what they do, what they print, how they fail."""

import asyncio
import json
import re
import shlex
import socket
from pathlib import Path

import pytest
import structlog
import typer
from typer.testing import CliRunner

from gateway.admin import commands
from gateway.admin.app import create_admin_app
from gateway.admin.commands import mount
from gateway.admin_listener import serving
from gateway.recorder import MAX_REMEMBERED
from policies.sqlite_store import SqliteStore

TOKEN = "admin-token-0123456789"
RECEIPT = {
    "request_id": "req_1", "chosen": "a", "reason": "prefix",
    "candidates": [
        {"replica": "a", "score_ms": 1.5, "hit_tokens": {"fused": 7}, "terms_ms": {"prefill": 1.25}, "filtered": None},
        {"replica": "b", "score_ms": None, "hit_tokens": None, "terms_ms": None, "filtered": "not ready"},
    ],
}  # fmt: skip
REPLICA = {
    "name": "worker-0", "model": "small", "engine": "warmlane", "url": "http://127.0.0.1:9", "state": "ready",
    "seats": 8, "in_flight": {"interactive": 2, "bulk": 1}, "labels": {"gpu": "no"}, "load": {"waiting": 0},
}  # fmt: skip
CONFIG = {"models": [{"name": "large", "price_in": 1.0}, {"name": "tiny", "price_in": None}]}

app = typer.Typer()
mount(app)


@pytest.fixture
async def url(tmp_path, gateway, control):
    """A real admin plane on a port of its own, served while the test's command runs in a thread."""
    gateway.will("GET", "/replicas", {"data": [REPLICA]})
    gateway.will("POST", "/replicas/worker-0/drain", {"name": "worker-0", "state": "draining"})
    gateway.will("POST", "/replicas/worker-0/resume", {"name": "worker-0", "state": "ready"})
    gateway.will("GET", "/requests/req_1/receipt", RECEIPT)
    async with await SqliteStore.open(tmp_path / "store.sqlite3") as store:
        listener = socket.create_server(("127.0.0.1", 0))
        # Unconfigured, structlog would print the admin plane's log among the command's output.
        with structlog.testing.capture_logs():
            async with serving(create_admin_app(store, control, TOKEN, config=lambda: CONFIG), listener):
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def warmlane(url, tmp_path, monkeypatch):
    """Runs one command line; the answer has exit_code, stdout and stderr."""
    monkeypatch.setenv("WARMLANE_ADMIN_URL", url)
    monkeypatch.setenv("WARMLANE_ADMIN_TOKEN", TOKEN)
    monkeypatch.setenv("WARMLANE_HOME", str(tmp_path))

    async def run(*words: str):
        return await asyncio.to_thread(CliRunner().invoke, app, list(words))

    return run


@pytest.fixture
def made(warmlane):
    """Runs a command that must succeed and answers its JSON."""

    async def run(*words: str):
        result = await warmlane(*words, "--json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    return run


@pytest.fixture
async def project(made):
    organization = await made("org", "create", "--name", "acme")
    return await made("project", "create", "--org", organization["id"], "--name", "chat")


async def test_from_nothing_to_a_key_and_its_end(made, project):
    """The whole life of a key from a shell."""
    key = await made("key", "create", "--project", project["id"], "--name", "laptop", "--max-lane", "standard")
    assert key["secret"].startswith("wl-")
    assert key["max_lane"] == "standard"
    rotated = await made("key", "rotate", key["id"], "--overlap", "1h")
    assert rotated["secret"] != key["secret"]
    assert [one["id"] for one in (await made("key", "list", "--project", project["id"]))["data"]] == [key["id"]]
    revoked = await made("key", "revoke", key["id"])
    assert revoked["revoked_at"] is not None
    assert (await made("org", "list"))["data"][0]["name"] == "acme"
    assert (await made("project", "list", "--org", project["organization_id"]))["data"] == [project]


async def test_a_key_can_be_made_to_expire(made, project):
    """`--expires-in` counts from now."""
    key = await made("key", "create", "--project", project["id"], "--name", "x", "--expires-in", "30d")
    assert key["expires_at"] - key["created_at"] == pytest.approx(30 * 86400, abs=5)


async def test_limits_are_set_and_read_by_either_level(made, warmlane, project, tmp_path):
    """The id says which level it is; a document may come from a file."""
    assert (await warmlane("limits", "get", project["id"])).stdout == "nothing is set: all is inherited\n"
    document = {"rpm": 60, "concurrency": {"bulk": 4}}
    assert await made("limits", "set", project["id"], json.dumps(document)) == document
    assert await made("limits", "get", project["id"]) == document
    file = tmp_path / "limits.json"
    file.write_text('{"rpm": null}')
    assert await made("limits", "set", project["organization_id"], "--file", str(file)) == {"rpm": None}


async def test_a_limit_of_money_names_the_models_that_it_closes(warmlane, project):
    """What has no price cannot be used then, which nobody would guess from the document; scripts read stdout alone."""
    for document, said in (('{"usd_per_month": 5}', "(small, tiny)"), ('{"usd_per_month": null}', ""), ("{}", "")):
        result = await warmlane("limits", "set", "--project", "chat", document, "--json")
        assert json.loads(result.stdout) == json.loads(document)
        assert said in result.stderr
        assert bool(result.stderr) == bool(said)


async def test_who_may_not_read_the_configuration_is_told_of_no_model(made, warmlane, project):
    """The limit is set all the same."""
    key = await made("key", "create", "--project", project["id"], "--name", "x", "--role", "organization_admin")
    result = await warmlane("limits", "set", project["id"], '{"usd_per_month": 5}', "--token", key["secret"])
    assert (result.exit_code, result.stderr) == (0, "")


async def test_limits_are_set_by_name(made, project):
    """`--project` and `--org` take what people call them."""
    assert await made("limits", "set", "--project", "chat", '{"rpm": 6}') == {"rpm": 6}
    assert await made("limits", "get", "--project", project["id"]) == {"rpm": 6}
    assert await made("limits", "set", "--org", "acme", '{"rpm": 7}') == {"rpm": 7}
    assert await made("limits", "get", project["organization_id"]) == {"rpm": 7}


async def test_a_project_and_an_organisation_are_found_by_name(made, project):
    """Everywhere one is asked for."""
    second = await made("project", "create", "--org", "acme", "--name", "second")
    assert second["organization_id"] == project["organization_id"]
    key = await made("key", "create", "--project", "second", "--name", "laptop")
    assert key["project_id"] == second["id"]
    assert [one["id"] for one in (await made("key", "list", "--project", "second"))["data"]] == [key["id"]]
    assert (await made("key", "list", "--project", "chat"))["data"] == []
    assert len((await made("project", "list", "--org", "acme"))["data"]) == 2


async def test_a_name_that_several_have_is_refused_with_their_ids(made, warmlane, project):
    """A key must not land in another's project. An id wins over a name that reads like it."""
    twin = await made("project", "create", "--org", "acme", "--name", "chat")
    result = await warmlane("key", "create", "--project", "chat", "--name", "x")
    assert result.exit_code == 1
    assert project["id"] in result.stderr
    assert twin["id"] in result.stderr
    await made("project", "create", "--org", "acme", "--name", twin["id"])
    assert (await made("key", "create", "--project", twin["id"], "--name", "x"))["project_id"] == twin["id"]


async def test_the_commands_of_the_readme_work(made, warmlane):
    """As they stand there, for the demo project of the first start."""
    await made("org", "create", "--name", "demo")
    await made("project", "create", "--org", "demo", "--name", "demo")
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    lines = re.findall(r"`\.venv/bin/warmlane ((?:org|project|key|limits) [^`]*)`", readme)
    assert {line.split()[0] for line in lines} >= {"key", "limits"}
    for line in lines:
        result = await warmlane(*shlex.split(line))
        assert result.exit_code == 0, (line, result.output)


async def test_replicas_are_listed_drained_and_resumed(made):
    """What an operator does before an upgrade."""
    assert (await made("replica", "list"))["data"][0]["name"] == "worker-0"
    assert (await made("replica", "drain", "worker-0"))["state"] == "draining"
    assert (await made("replica", "resume", "worker-0"))["state"] == "ready"


async def test_a_receipt_is_shown(made, warmlane):
    """The candidates are a table for people and plain JSON for scripts."""
    assert await made("receipt", "req_1") == RECEIPT
    shown = (await warmlane("receipt", "req_1")).stdout
    assert re.search(r"^chosen +a$", shown, re.MULTILINE)
    heading, first, second = shown.splitlines()[-3:]
    assert heading.split()[:5] == ["replica", "score_ms", "hit_tokens", "seat", "prefill"]
    assert first.split()[:5] == ["a", "1.5", "7", "-", "1.25"]
    assert second.endswith("not ready")


@pytest.mark.parametrize("given", ["chatcmpl-req_1-1", "cmpl-req_1-2", "chatcmpl-req_1"])
async def test_the_id_in_an_answers_body_finds_its_receipt(made, given):
    """It is what a client has at hand."""
    assert await made("receipt", given) == RECEIPT


async def test_an_unknown_receipt_says_where_receipts_live(warmlane):
    """Whoever asks after a restart must not think that the request never was."""
    said = (await warmlane("receipt", "chatcmpl-req_none-1")).stderr
    assert "'req_none'" in said
    assert "the last 10,000 requests" in said
    assert "/admin/v1/usage/requests/" in said
    assert MAX_REMEMBERED == 10_000


async def test_a_replica_is_one_row_without_what_only_json_can_show(warmlane, made):
    """What is nested would be as wide as the rest together."""
    shown = (await warmlane("replica", "list")).stdout.splitlines()
    assert [line.split() for line in shown] == [
        ["name", "model", "engine", "state", "seats", "running"],
        ["worker-0", "small", "warmlane", "ready", "8", "3"],
    ]
    assert (await made("replica", "list"))["data"] == [REPLICA]


async def test_a_new_secret_is_said_to_be_shown_once(warmlane, project):
    """On stderr: stdout has the fields alone."""
    for words in (("create", "--project", "chat", "--name", "x"), ("rotate", "KEY")):
        listed = json.loads((await warmlane("key", "list", "--json")).stdout)["data"]
        result = await warmlane("key", *(listed[0]["id"] if word == "KEY" else word for word in words))
        assert result.stderr == "the secret is shown only this once: keep it now\n"
        assert "secret" in result.stdout
    assert (await warmlane("key", "create", "--project", "chat", "--name", "y", "--json")).stderr == ""


async def test_a_key_has_its_state(warmlane, made, project):
    """A column of dashes and times tells it less well."""
    for name in ("usable", "revoked"):
        key = await made("key", "create", "--project", "chat", "--name", name)
    await made("key", "revoke", key["id"])
    rows = [line.split() for line in (await warmlane("key", "list")).stdout.splitlines()[1:]]
    assert sorted((row[1], row[-1]) for row in rows) == [("revoked", "revoked"), ("usable", "usable")]
    assert commands.key_state({"revoked_at": None, "expires_at": 100}, 100.0) == "expired"


async def test_the_keys_of_one_project_are_shown_with_their_last_use(warmlane, made, project):
    """Whoever wants to end what nobody uses must see it; its project needs no column then."""
    await made("key", "create", "--project", "chat", "--name", "k")
    heading, line = (await warmlane("key", "list", "--project", "chat")).stdout.splitlines()
    assert heading.split() == ["id", "name", "max_lane", "roles", "state", "last_used_at"]
    assert line.split()[-2:] == ["usable", "-"]


async def test_limits_are_taken_back_with_an_empty_document(warmlane, made, project):
    """`set` replaces the whole of it, and says what then holds."""
    await made("limits", "set", "--project", "chat", '{"rpm": 5}')
    assert (await warmlane("limits", "set", "--project", "chat", "{}")).stdout == "nothing is set: all is inherited\n"
    assert await made("limits", "get", "--project", "chat") == {}


async def test_tables_are_whole_lines_in_a_pipe(warmlane, made, project):
    """What is piped must not be folded to a terminal's width, and brackets in a name are no markup."""
    key = await made("key", "create", "--project", project["id"], "--name", "[bold]" + "x" * 100)
    lines = (await warmlane("key", "list")).stdout.splitlines()
    assert len(lines) == 2
    assert lines[0].split() == ["id", "name", "project_id", "max_lane", "roles", "state"]
    assert lines[1].split() == [key["id"], "[bold]" + "x" * 100, project["id"], "-", "service", "usable"]


@pytest.mark.parametrize("columns", ["100", "40"])
async def test_ids_are_whole_in_a_terminal(warmlane, made, project, monkeypatch, columns):
    """They are copied into the next command. With 100 columns a line fits; with 40 the terminal wraps it."""
    key = await made("key", "create", "--project", "chat", "--name", "a long name for a key " * 3)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", columns)
    for words, ids in ((("key", "list"), (key["id"], project["id"])), (("audit",), (key["id"], "key.created"))):
        shown = re.sub(r"\x1b\[[0-9;]*m", "", (await warmlane(*words)).stdout)
        assert all(one in shown for one in ids), shown
        assert columns == "40" or max(map(len, shown.splitlines())) <= 100


@pytest.mark.parametrize("words", [("org", "list"), ("project", "list"), ("key", "list")])
async def test_an_empty_list_says_so(warmlane, words):
    """An empty table would look like a failure."""
    assert (await warmlane(*words)).stdout.startswith("there are no ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("key", "revoke", "key_none"), "there is no key 'key_none'"),
        (("project", "create", "--org", "org_none", "--name", "x"), "there is no organization 'org_none'"),
        (("org", "create", "--name", "x" * 200), "name must have at most 128 characters"),
        (("org", "create", "--name", "a\nb"), "name has characters that may not be in it"),
        (("limits", "set", "PROJECT", '{"rpm": -1}'), "limits document: rpm must be at least 0"),
        (("limits", "set", "PROJECT", '{"time_zone": "localtime"}'), "time_zone is no IANA time zone"),
        (("limits", "set", "PROJECT", "--file", "/dev/zero"), "at most 262144 bytes"),
        (("limits", "simulate", "--project", "chat", "--document", "/dev/null"), "/dev/null: not a limits document"),
        (("limits", "set", "PROJECT", '{"rpm": NaN}'), "(rpm)"),
        (("limits", "set", "PROJECT", "{"), "not a limits document"),
        (("limits", "set", "proj_none", "--file", "/nowhere"), "cannot read /nowhere"),
        (("key", "create", "--project", "none", "--name", "x"), "no project with the name or id 'none'"),
        (("project", "create", "--org", "none", "--name", "x"), "no organisation with the name or id 'none'"),
        (("org", "create", "--name", "\udcff"), r"'\udcff' is not text in UTF-8"),
        (("receipt", "\udcff"), r"'\udcff' is not text in UTF-8"),
        (("receipt", "req_none"), "no gateway knows the request 'req_none'"),
        (("replica", "drain", "none"), "no gateway knows the replica 'none'"),
        (("org", "list", "--token", "wrong"), "does not take this token"),
        (("org", "list", "--url", "http://127.0.0.1:1"), "is it running? start it with `make run` or `warmlane up`"),
    ],
)
async def test_a_failure_is_one_sentence_and_exit_1(warmlane, project, words, sentence):
    """No traceback, nothing on stdout, and the cause in one line."""
    result = await warmlane(*(project["id"] if word == "PROJECT" else word for word in words))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("warmlane: ")
    assert sentence in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("key", "create", "--project", "p"),
        ("key", "create", "--project", "p", "--name", "x", "--max-lane", "fast"),
        ("key", "create", "--project", "p", "--name", "x", "--expires-in", "soon"),
        ("key", "rotate", "key_1", "--overlap", "-1"),
        ("limits", "get", "key_1"),
        ("limits", "get"),
        ("limits", "get", "--project", "p", "--org", "o"),
        ("limits", "get", "proj_1", "--org", "o"),
        ("limits", "set", "proj_1"),
        ("limits", "set", "--project", "p"),
        ("limits", "set", "--project", "p", "proj_1", "{}"),
        ("limits", "set", "proj_1", "{}", "--file", "x"),
        ("org", "rename"),
        ("org", "create", "--name", ""),
        ("receipt",),
        ("receipt", ""),
        ("key", "revoke", ""),
        ("key", "revoke", "../organizations"),
        ("key", "create", "--project", "p", "--name", "x", "--expires-in", "0s"),
        ("key", "create", "--project", "p", "--name", "x", "--expires-in", "99999999w"),
        ("replica", "drain", ""),
        ("limits", "get", "demo"),
        ("limits", "set", "--project", "p", "--file", "x", "{}"),
    ],
)
async def test_bad_usage_is_exit_2(warmlane, words):
    """A misspelt command must not be taken for a failure of the server."""
    assert (await warmlane(*words)).exit_code == 2


@pytest.mark.parametrize("command", ["revoke", "rotate"])
async def test_a_secret_in_the_place_of_an_id_is_neither_sent_nor_shown(warmlane, made, project, command, gateway):
    """It is what people have at hand; a URL with it would end up in logs."""
    key = await made("key", "create", "--project", "chat", "--name", "laptop")
    result = await warmlane("key", command, key["secret"])
    assert result.exit_code == 2
    assert "that is a key's secret; give its id" in " ".join(result.stderr.replace("│", " ").split())
    assert key["secret"][-12:] not in result.stderr
    assert (await made("key", "list"))["data"][0]["revoked_at"] is None


@pytest.mark.parametrize(
    ("words", "choices"),
    [
        (("usage", "--group-by", "x"), "organization, project, key, model, lane or day"),
        (("key", "create", "--project", "p", "--name", "n", "--max-lane", "x"), "interactive, standard or bulk"),
    ],
)
def test_a_wrong_choice_is_answered_with_the_choices(words, choices):
    """As plain words, and the same in the help."""
    said = " ".join(CliRunner().invoke(app, list(words)).stderr.replace("│", " ").split())
    assert f"'x' is none of them; give {choices}" in said
    assert "Value error" not in said
    shown = " ".join(CliRunner().invoke(app, [*words[:-2], "--help"]).stdout.replace("│", " ").split())
    assert choices.split(", ")[-1] in shown


@pytest.mark.parametrize(
    "words",
    [
        ("org", "create"), ("org", "list"), ("project", "create"), ("project", "list"),
        ("key", "create"), ("key", "list"), ("key", "revoke"), ("key", "rotate"),
        ("limits", "get"), ("limits", "set"), ("replica", "list"), ("replica", "drain"),
        ("replica", "resume"), ("replica", "warm"), ("prefixes",), ("receipt",),
    ],
)  # fmt: skip
def test_every_command_has_help_with_an_example(words):
    """People learn a command from its example."""
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0
    assert "Example: warmlane " + " ".join(words) in " ".join(result.stdout.split())
    assert "--json" in result.stdout


async def test_audit_shows_who_changed_what(made, warmlane, project):
    """The newest first, with filters by name; people see one row each."""
    await made("limits", "set", "--project", "chat", '{"rpm": 5}')
    rows = (await made("audit", "--project", "chat"))["data"]
    assert [one["action"] for one in rows] == ["limits.set", "project.created"]
    assert (rows[0]["before"], rows[0]["after"], rows[0]["actor_kind"]) == ({}, {"rpm": 5}, "admin_token")
    assert len((await made("audit", "--limit", "2"))["data"]) == 2
    assert (await made("audit", "--action", "key.created"))["data"] == []
    shown = await warmlane("audit", "--subject", project["id"], "--from", "2020-01-01")
    assert shown.exit_code == 0
    heading, newest, _ = shown.stdout.splitlines()
    assert heading.split() == ["time", "actor", "change", "subject"]
    assert re.fullmatch(rf"20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ +admin_token +limits\.set +{project['id']} *", newest)
    assert (await warmlane("audit", "--actor", "nobody")).stdout == "nothing was changed\n"


async def test_a_key_gets_its_roles_and_a_project_is_deleted_with_it(made, warmlane, project):
    """`--role` more than once; what is in use goes only with `--cascade`."""
    key = await made("key", "create", "--project", "chat", "--name", "ops", "--role", "viewer", "--role", "service")
    assert key["roles"] == ["service", "viewer"]
    refused = await warmlane("project", "delete", "chat")
    assert (refused.exit_code, "--cascade" in refused.stderr) == (1, True)
    assert (await made("project", "delete", "chat", "--cascade"))["keys"] == [key["id"]]
    assert (await made("org", "delete", "acme"))["organizations"] == [project["organization_id"]]
    assert (await made("org", "list"))["data"] == []
