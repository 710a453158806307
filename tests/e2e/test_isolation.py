"""Tenants on real engines: no prompt of one warms the cache for another, unless they asked for it together (P10)."""

import contextlib
import json
import subprocess
import sys

import httpx
import pytest

from engines.launch.demo_model import DEMO_MODEL_NAME
from tests.warmlane_process import PATIENCE_S, commands

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LONG = " ".join(f"Rule {number}: name step {number} and give one plain example." for number in range(1, 11))


class Tenant:
    """A project with a key in a running system, which asks for one token and says what of its prompt was cached."""

    def __init__(self, system, organization, name, limits=None):
        self._system = system
        self.project = system.admin("/projects", "POST", {"name": name, "organization_id": organization})["id"]
        if limits is not None:
            self.limit(limits)
        self.key = system.admin("/keys", "POST", {"name": name, "project_id": self.project})["secret"]

    def limit(self, limits):
        """Set its limits document."""
        self._system.admin(f"/projects/{self.project}/limits", "PUT", limits)

    def ask(self, prompt, **fields):
        """The answer to a prompt."""
        messages = [{"role": "system", "content": prompt}, {"role": "user", "content": "And now?"}]
        return self._system.chat(self.key, messages=messages, max_tokens=1, **fields)

    def cached(self, prompt, **fields):
        """Cached tokens of a prompt, as the tenant is told."""
        answer = self.ask(prompt, **fields)
        assert answer.status_code == 200, answer.text
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def organization(system, name):
    """Id of a new organisation."""
    return system.admin("/organizations", "POST", {"name": name})["id"]


@pytest.mark.model
def test_on_a_real_model_a_prompt_is_warm_for_who_sent_it_and_for_nobody_else(demo):
    """Birch sends alder's prompt, also with a guess of alder's salt: 0 cached. Alder's second: most of it."""
    alder, birch = (Tenant(demo, organization(demo, name), name) for name in ("alder", "birch"))
    prompt, model = f"Trees. {LONG}", {"model": DEMO_MODEL_NAME}
    assert alder.cached(prompt, **model) == 0
    guesses = {"cache_salt": "guess", "Cache-Salt": "guess", "extra_body": {"cache_salt": "guess"}}
    assert birch.cached(prompt, **model, **guesses) == 0
    assert alder.cached(prompt, **model) > 60
    assert birch.cached(prompt, **model) > 60


@pytest.mark.model
def test_a_sharing_group_is_warm_for_its_projects_and_ends_with_its_organisation(demo):
    """Opt-in: both name it, in one organisation. The same name elsewhere, and another name, share nothing."""
    shared = {"sharing_group": "assistants"}
    home, other = organization(demo, "home"), organization(demo, "other")
    cedar, cypress = (Tenant(demo, home, name, shared) for name in ("cedar", "cypress"))
    outside, apart = Tenant(demo, home, "outside"), Tenant(demo, home, "apart", {"sharing_group": "batch"})
    namesake = Tenant(demo, other, "namesake", shared)
    prompt, model = f"Conifers. {LONG}", {"model": DEMO_MODEL_NAME}
    assert cedar.cached(prompt, **model) == 0
    assert cypress.cached(prompt, **model) > 60
    assert [one.cached(prompt, **model) for one in (outside, apart, namesake)] == [0, 0, 0]
    cypress.limit({})
    assert cypress.cached(prompt, **model) == 0  # who leaves finds nothing of the group's
    assert "limits.set" in demo.stderr


@contextlib.contextmanager
def engine():
    """The URL of a fake worker in a process of its own, for a replica that says it is a llama-server."""
    command = [sys.executable, "-m", "engines.worker", "--engine", "fake", "--model", "fake-model", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        fields = dict(part.split("=", 1) for part in process.stdout.readline().split()[1:])
        yield fields["url"].removesuffix("/v1")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def config(url, **fields):
    """A configuration with one engine that has no salt."""
    replica = {"name": "shared", "model": "fake-model", "engine": "llama-server", "url": url, **fields}
    return "[[replicas]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in replica.items())


def order(system, verb):
    """An order about the replica: the answer."""
    headers = {"authorization": f"Bearer {system.fields['admin_token']}"}
    url = f"{system.fields['admin']}/admin/v1/replicas/shared/{verb}"
    return httpx.post(url, headers=headers, timeout=PATIENCE_S)


def test_an_engine_without_a_salt_stays_its_tenants_over_restarts_until_it_is_released(tmp_path):
    """Its cache outlives the gateway, so the claim does; the operator ends it, drained and cleared."""
    with engine() as url, commands(tmp_path / "home") as start:
        first = start("gateway", config=config(url))
        first.until_ready()
        first.until_logged("replica.cache_undivided")
        first.until_replicas([("shared", "ready", 0)])
        alder, birch = (Tenant(first, organization(first, name), name) for name in ("alder", "birch"))
        assert alder.ask(LONG).status_code == 200
        refused = birch.ask(LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_replica_not_allowed")
        assert first.end() == 0
        second = start("gateway", config=config(url))
        second.until_ready()
        second.until_replicas([("shared", "ready", 0)])
        alder._system = birch._system = second
        assert birch.ask(LONG).status_code == 503
        [shown] = second.admin("/replicas")["data"]
        assert shown["cache"] == {"separation": "owner", "owner": alder.project}
        assert order(second, "release").status_code == 409
        assert order(second, "drain").status_code == 200
        assert order(second, "release").status_code == 200
        assert order(second, "resume").status_code == 200
        assert birch.ask(LONG).status_code == 200
        assert alder.ask(LONG).status_code == 503
        assert second.end() == 0


def test_what_an_accepted_cache_tells_is_what_its_operator_was_warned_of(tmp_path):
    """The control of the experiment: without a salt and with sharing accepted, birch's prompt is warm from alder's."""
    with engine() as url, commands(tmp_path / "home") as start:
        system = start("gateway", config=config(url, shared_cache="accept"))
        system.until_ready()
        system.until_logged("sharing it is accepted")
        system.until_replicas([("shared", "ready", 0)])
        alder, birch = (Tenant(system, organization(system, name), name) for name in ("alder", "birch"))
        assert alder.cached(LONG) == 0
        assert birch.cached(LONG) > 60
        [shown] = system.admin("/replicas")["data"]
        assert shown["cache"] == {"separation": "none", "owner": None}
        assert system.end() == 0
