"""`POST /replicas/warm` and `warmlane replica warm`: what is passed on, what is written down, what a shell sees."""

import json

import pytest

from gateway.admin.control_client import GatewayControl
from tests.gateway.admin.test_commands import made, project, url, warmlane  # noqa: F401 - fixtures

ROW = {
    "replica": "r1", "outcome": "finished", "reason": None, "request_id": "req_1", "prompt_tokens": 1000,
    "cached_tokens": 10, "uncached_tokens": 990, "queue_s": 0.0, "duration_s": 0.25,
}  # fmt: skip
FAILED = ROW | {"replica": "r2", "outcome": "timed_out", "reason": "the deadline has passed", "uncached_tokens": None}


def warmed(*rows):
    """What a gateway answers."""
    return {
        "project_id": "proj_1", "organization_id": "org_1", "model": "m", "lane": "bulk", "asked": len(rows),
        "warmed": sum(row["outcome"] == "finished" for row in rows), "charged_tokens": 1001, "replicas": list(rows),
    }  # fmt: skip


BODY = {"project_id": "proj_1", "request": {"model": "m", "messages": []}}


async def test_it_is_passed_on_answered_and_written_down(admin, gateway):
    """The audit log has what it came to, and no word of the prompt."""
    gateway.will("POST", "/prefixes/warm", warmed(ROW))
    body = BODY | {"request": {"model": "m", "messages": [{"role": "system", "content": "secret plan"}]}}
    answer = await admin.post("/admin/v1/replicas/warm", json=body)
    assert (answer.status_code, answer.json()) == (200, warmed(ROW))
    assert json.loads(gateway.asked[-1][2]) == body
    [entry] = (await admin.get("/admin/v1/audit?action=prefix.warmed")).json()["data"]
    assert (entry["project_id"], entry["subject_id"], entry["after"]["warmed"]) == ("proj_1", "m", 1)
    assert "secret" not in json.dumps(entry)


async def test_a_refusal_is_passed_on_and_not_written_down(admin, gateway):
    """Nothing was done."""
    gateway.will("POST", "/prefixes/warm", {"error": {"message": "no project"}}, status=404)
    assert (await admin.post("/admin/v1/replicas/warm", json=BODY)).status_code == 404
    assert (await admin.get("/admin/v1/audit?action=prefix.warmed")).json()["data"] == []


@pytest.mark.parametrize(
    ("changes", "param"),
    [({"count": 0}, "count"), ({"timeout_s": 1e9}, "timeout_s"), ({"count": 2, "replicas": ["r"]}, "count")],
)
async def test_a_bad_body_is_refused_with_its_field(admin, gateway, changes, param):
    """Before a gateway is asked."""
    answer = await admin.post("/admin/v1/replicas/warm", json=BODY | changes)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert gateway.asked == []


async def test_the_gateway_is_given_as_long_as_was_asked_for(gateway):
    """And not the two seconds of other questions; here it never answers."""
    gateway.is_silent = True
    control = GatewayControl(lambda: [gateway.socket], timeout_s=0.01)
    with pytest.raises(Exception, match=r"within 0\.06 s"):
        await control.warm(b"{}", 0.05)


@pytest.mark.parametrize(
    ("content", "sends"),
    [
        ('{"model": "m", "prompt": "abc"}', ("/v1/completions", {"model": "m", "prompt": "abc"})),
        (
            '[{"role": "system", "content": "x"}]',
            ("/v1/chat/completions", {"messages": [{"role": "system", "content": "x"}], "model": "other"}),
        ),
        (
            "Be kind.\n",
            (
                "/v1/chat/completions",
                {
                    "messages": [{"role": "system", "content": "Be kind.\n"}, {"role": "user", "content": "."}],
                    "model": "other",
                },
            ),
        ),
    ],
)
async def test_the_command_takes_a_request_messages_or_plain_text(warmlane, project, gateway, content, sends, tmp_path):  # noqa: F811, PLR0917
    """In the name of a project that is called by its name."""
    gateway.will("POST", "/prefixes/warm", warmed(ROW))
    file = tmp_path / "prompt"
    file.write_text(content)
    model = [] if "model" in content else ["--model", "other"]
    result = await warmlane("replica", "warm", str(file), "--project", "chat", *model, "--count", "2", "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, warmed(ROW)), result.stderr
    sent = json.loads(gateway.asked[-1][2])
    assert ((sent["surface"], sent["request"]), sent["count"]) == (sends, 2)
    assert (sent["project_id"], sent["lane"]) == (project["id"], "bulk")


async def test_the_command_draws_a_row_for_each_replica(warmlane, project, gateway, tmp_path):  # noqa: F811
    """The failed one with its reason; the exit code is 1 only if all failed."""
    file = tmp_path / "prompt.txt"
    file.write_text("You are kind.")
    words = ("replica", "warm", str(file), "--project", "chat", "--model", "m", "--replica", "r1", "--replica", "r2")
    gateway.will("POST", "/prefixes/warm", warmed(ROW, FAILED))
    result = await warmlane(*words)
    assert result.exit_code == 0, result.stderr
    assert json.loads(gateway.asked[-1][2])["replicas"] == ["r1", "r2"]
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("r")]
    assert rows[-2][:5] == ["r1", "finished", "1000", "10", "990"]
    assert "the deadline has passed" in result.stdout
    gateway.will("POST", "/prefixes/warm", warmed(FAILED))
    result = await warmlane(*words)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "warmlane: no replica has read it: r2 timed_out: the deadline has passed\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"\xff\xfe", "neither JSON nor text"),
        (b"5", "is no prompt"),
        (b'{"model": "m"}', "is no prompt"),
        (b"[]", "names no model"),
        (None, "cannot read"),
    ],
)
async def test_a_file_that_is_no_prompt_is_a_sentence(warmlane, project, tmp_path, content, said):  # noqa: F811
    """Exit code 1, and nothing is asked."""
    file = tmp_path / "prompt"
    if content is not None:
        file.write_bytes(content)
    result = await warmlane("replica", "warm", str(file), "--project", "chat")
    assert (result.exit_code, said in result.stderr, result.stderr.count("\n")) == (1, True, 1), result.stderr
    both = await warmlane("replica", "warm", str(file), "--project", "chat", "--count", "2", "--replica", "r")
    assert both.exit_code == 2
