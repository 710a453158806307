"""What goes wrong in a running system: each fault is a clear error, nothing leaks, and the next request is served."""

import json
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.conftest import assert_quiescent
from tests.warmlane_process import PATIENCE_S

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def streamed(fakes, max_tokens, **fields):
    """The events of one streamed chat: parsed chunks, errors and the end marker as they came."""
    body = {
        "model": "fake-model",
        "messages": [{"role": "user", "content": "tell me a story"}],
        "max_tokens": max_tokens,
        "stream": True,
        "ignore_eos": True,
        **fields,
    }
    headers = {"authorization": f"Bearer {fakes.fields['key']}"}
    with httpx.stream(
        "POST", f"{fakes.fields['url']}/chat/completions", json=body, headers=headers, timeout=PATIENCE_S
    ) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield line[6:]


def test_a_worker_killed_in_mid_stream_is_an_error_event_and_comes_back(fakes):
    """The client sees an error, never a false end marker; the worker is started again and the system is whole."""
    events = []
    for event in streamed(fakes, 7000):  # more than it can have said before it is killed, however slow we are
        events.append(event)
        if len(events) == 5:
            running = [one for one in fakes.admin("/replicas")["data"] if any(one["in_flight"].values())]
            assert len(running) == 1
            port = urlsplit(running[0]["url"]).port
            victim = next(
                one
                for one in fakes.children()
                if any(conn.laddr.port == port for conn in one.net_connections(kind="tcp") if conn.status == "LISTEN")
            )
            victim.kill()
    assert events[-1] != "[DONE]"
    error = json.loads(events[-1])["error"]
    assert (error["code"], error["reason"]) == ("502", "replica_reset")
    fakes.until_replicas(
        sorted(
            (one["name"], "ready", one["generation"] + (one["name"] == running[0]["name"]))
            for one in [*running, *[r for r in fakes.admin("/replicas")["data"] if r["name"] != running[0]["name"]]]
        )
    )
    assert fakes.chat().status_code == 200
    assert_quiescent(fakes)


def test_200_clients_that_leave_at_random_moments_leave_nothing_behind(fakes):
    """Half-sent requests, requests in the queue, streams at every point: all end, each request has one record."""
    key, url = fakes.fields["key"], urlsplit(fakes.fields["url"])
    body = json.dumps(
        {
            "model": "fake-model",
            "messages": [{"role": "user", "content": "hello " * 50}],
            "max_tokens": 400,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body

    def leave(seed):
        moment = random.Random(seed)
        with socket.create_connection((url.hostname, url.port), timeout=PATIENCE_S) as client:
            if moment.random() < 0.2:
                client.sendall(request[: moment.randrange(1, len(request))])
                return
            client.sendall(request)
            for _ in range(moment.randrange(0, 6)):
                if not client.recv(moment.choice([64, 4096])):
                    break
            if moment.random() < 0.3:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")

    before = outcomes(fakes)
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(leave, range(200)))
    assert_quiescent(fakes)
    assert fakes.chat().status_code == 200
    after = outcomes(fakes)
    assert after.get("client_gone", 0) > before.get("client_gone", 0)
    assert set(after) <= {"client_gone", "finished", "replica_error", "refused"}


def outcomes(fakes):
    """`warmlane_requests_total` by outcome."""
    answer = httpx.get(
        f"{fakes.fields['admin']}/metrics",
        headers={"authorization": f"Bearer {fakes.fields['admin_token']}"},
        timeout=PATIENCE_S,
    )
    counts = {}
    for line in answer.text.splitlines():
        if line.startswith("warmlane_requests_total{"):
            outcome = line.split('outcome="')[1].split('"')[0]
            counts[outcome] = counts.get(outcome, 0) + float(line.rsplit(" ", 1)[1])
    return counts


def test_a_revoked_key_is_refused_at_once(fakes):
    """The call after the revocation answers 401; another key of the project goes on."""
    project = fakes.admin("/projects")["data"][0]["id"]
    key = fakes.admin("/keys", "POST", {"name": "short-lived", "project_id": project})
    headers = {"authorization": f"Bearer {key['secret']}"}
    assert httpx.get(f"{fakes.fields['url']}/models", headers=headers).status_code == 200
    fakes.admin(f"/keys/{key['id']}", "DELETE")
    refused = httpx.get(f"{fakes.fields['url']}/models", headers=headers)
    assert refused.status_code == 401
    assert key["secret"] not in refused.text
    assert fakes.chat().status_code == 200


def test_limits_set_by_the_admin_act_at_once_and_are_named(fakes):
    """Of five requests in a minute of three, two are refused with the limit's name and a wait that is true."""
    organization = fakes.admin("/organizations", "POST", {"name": "limited"})
    project = fakes.admin("/projects", "POST", {"name": "limited", "organization_id": organization["id"]})
    key = fakes.admin("/keys", "POST", {"name": "k", "project_id": project["id"]})
    fakes.admin(f"/projects/{project['id']}/limits", "PUT", {"rpm": 3})
    answers = [fakes.chat(key=key["secret"]) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert answers[3].json()["error"]["code"] == "rpm"
    assert 1 <= int(answers[3].headers["retry-after"]) <= 61
    assert answers[0].headers["x-ratelimit-remaining-requests"] == "2"
    fakes.admin(f"/projects/{project['id']}/limits", "PUT", {"rpm": 10})
    assert fakes.chat(key=key["secret"]).status_code == 200


def test_a_drained_worker_gets_nothing_new(fakes):
    """While one worker is drained every request goes to the other; resumed, both are there again."""
    fakes.admin("/replicas/worker-1/drain", "POST")
    ids = [fakes.chat().headers["x-request-id"] for _ in range(4)]
    assert {fakes.admin(f"/requests/{one}")["replica"] for one in ids} == {"worker-2"}
    fakes.admin("/replicas/worker-1/resume", "POST")
    assert {one["state"] for one in fakes.admin("/replicas")["data"]} == {"ready"}
