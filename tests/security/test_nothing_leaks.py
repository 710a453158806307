"""P41 and the seventh rule of logs: no secret, no prompt and no answer in anything the system says of itself."""

import base64
import json

import httpx
import pytest

from tests.security.conftest import ADMIN_TOKEN, ask, bearer, record_of

pytestmark = pytest.mark.e2e

MARKS = {
    "system prompt": "zebra-system-7f1d",
    "prompt": "zebra-prompt-02ac",
    "tool": "zebra-tool-93be",
    "metadata": "zebra-metadata-5c5c",
    "user": "zebra-user-d00d",
    "header": "zebra-header-1111",
    "query": "zebra-query-2222",
}
ADMIN_READS = [
    "/admin/v1/organizations",
    "/admin/v1/projects",
    "/admin/v1/keys",
    "/admin/v1/replicas",
    "/admin/v1/queue",
    "/admin/v1/statistics",
    "/admin/v1/config",
    "/admin/v1/openapi.json",
    "/metrics",
]


def ask_chat(system, key, *, headers=(), path="/v1/chat/completions", **fields):
    """A chat request full of marks."""
    body = {
        "model": "fake-model",
        "max_tokens": 4,
        "messages": [
            {"role": "system", "content": MARKS["system prompt"]},
            {"role": "user", "content": MARKS["prompt"]},
        ],
        "tools": [{"type": "function", "function": {"name": MARKS["tool"], "parameters": {}}}],
        "tool_choice": "none",
        "metadata": {"note": MARKS["metadata"]},
        "user": MARKS["user"],
        **fields,
    }
    sent = [*bearer(key), ("content-type", "application/json"), ("x-secret-note", MARKS["header"]), *headers]
    return ask(system.public, "POST", path, sent, json.dumps(body).encode())


@pytest.fixture(scope="module")
def said(system):
    """Everything that was said while requests succeeded and failed in many ways, by where it was said."""
    answers = {}
    alder = system.alder.key
    whole = ask_chat(system, alder)
    streamed = ask_chat(system, alder, stream=True, stream_options={"include_usage": True})
    assert (whole.status, streamed.status) == (200, 200), (whole, streamed)
    failures = {
        "unknown key": ask_chat(system, alder[:-1] + "A"),
        "short key": ask_chat(system, alder[:20]),
        "unknown model": ask_chat(system, alder, model="zebra-none"),
        "bad field": ask_chat(system, alder, temperature="hot"),
        "bad lane": ask_chat(system, alder, headers=[("x-warmlane-lane", "fast")]),
        "refused by the engine": ask_chat(
            system, alder, tool_choice={"type": "function", "function": {"name": "zebra-none"}}
        ),
        "out of context": ask_chat(system, alder, max_tokens=9_999_999),
        "no json": ask(
            system.public, "POST", "/v1/chat/completions", bearer(alder), b'{"messages": "' + MARKS["prompt"].encode()
        ),
        "query": ask(system.public, "GET", f"/v1/models?api_key={alder}&note={MARKS['query']}"),
        "no route": ask(system.public, "GET", "/v1/none", bearer(alder)),
        "admin, unknown": ask(system.admin, "GET", "/admin/v1/projects/none", bearer(ADMIN_TOKEN)),
        "admin, refused": ask(system.admin, "GET", "/admin/v1/projects", bearer(ADMIN_TOKEN[:-1])),
        "admin, bad body": ask(system.admin, "POST", "/admin/v1/keys", bearer(ADMIN_TOKEN), b'{"name": 1}'),
    }
    assert {name for name, answer in failures.items() if answer.status < 400} == set()
    for name, answer in failures.items():
        answers[f"error: {name}"] = answer.body + repr(answer.headers).encode()
    for answer in (whole, streamed):
        request = answer.headers["x-request-id"]
        answers[f"record of {request}"] = record_of(system, request).body
        receipt = ask(system.admin, "GET", f"/admin/v1/requests/{request}/receipt", bearer(ADMIN_TOKEN))
        answers[f"receipt of {request}"] = receipt.body
    dry_run = json.dumps(
        {
            "project_id": system.alder.project,
            "request": {"model": "fake-model", "messages": [{"role": "user", "content": MARKS["prompt"]}]},
        }
    )
    explained = ask(system.admin, "POST", "/admin/v1/routes/explain", bearer(ADMIN_TOKEN), dry_run.encode())
    assert explained.status == 200, explained
    answers["dry run"] = explained.body
    for path in ADMIN_READS:
        answer = ask(system.admin, "GET", path, bearer(ADMIN_TOKEN))
        assert answer.status == 200, (path, answer)
        answers[path] = answer.body
    for replica in json.loads(answers["/admin/v1/replicas"])["data"]:
        if replica["engine"] == "warmlane":
            for path in ("/metrics", "/load", "/health", "/v1/models"):
                answers[f"worker {path}"] = httpx.get(replica["url"] + path).content
    answers["log"] = system.running.stderr.encode()
    assert b"request.finished" in answers["log"]
    return answers


def spellings(secret):
    """The secret as it is, in parts, and as somebody may have encoded it."""
    yield secret
    yield secret[6:-2]
    yield base64.b64encode(secret.encode()).decode().rstrip("=")
    yield secret.encode().hex()


def test_no_secret_is_in_anything_that_is_said(system, said):
    """Keys, their hashes, salts, the server's secret, the admin token, an engine's key: in no log, answer or metric."""
    for what, secret in system.secrets.items():
        for spelt in spellings(secret):
            found = [where for where, text in said.items() if spelt.encode() in text]
            assert found == [], f"{what} in {found}"


def test_no_word_of_a_conversation_is_in_anything_that_is_said(said):
    """Prompts, tools, metadata, users, unknown headers and query strings stay with who sent them."""
    for what, mark in MARKS.items():
        found = [where for where, text in said.items() if mark.encode() in text]
        assert found == [], f"{what} in {found}"


def test_the_scan_would_find_what_it_looks_for(system, said):
    """The other half: prefixes of keys are shown on purpose, so the scan does read what it is given."""
    assert system.alder.key[:11].encode() in said["/admin/v1/keys"]
    assert system.alder.project.encode() in said["/admin/v1/projects"]
    assert b"fake-model" in said["log"]


def test_metrics_name_no_tenant(system, said):
    """P40: labels come from closed sets; tenants are in the ledger, spans and log."""
    for tenant in (system.alder, system.birch):
        for name in (tenant.project, tenant.organization, tenant.key_id):
            assert name.encode() not in said["/metrics"]
            assert name.encode() not in b"".join(text for where, text in said.items() if where.startswith("worker"))


def test_files_with_secrets_are_their_owners_alone(system):
    """The home holds the store, the token and the demo key."""
    files = [path for path in system.home.rglob("*") if path.is_file() and "models" not in path.parts]
    assert {path.name for path in files} >= {"warmlane.sqlite3", "demo.json"}
    secrets = [secret.encode() for secret in system.secrets.values()]
    open_to_others = [path for path in files if path.stat().st_mode & 0o077]
    for path in open_to_others:
        assert not any(secret in path.read_bytes() for secret in secrets), path


def test_no_process_shows_a_secret_in_its_command_line(system):
    """Any user of the machine may read those."""
    lines = [" ".join(child.cmdline()) for child in system.running.children()]
    assert len(lines) >= 2
    for what, secret in system.secrets.items():
        assert not any(secret in line for line in lines), what
