"""A person at the admin plane of a real `warmlane gateway`: the provider is found, asked, and left alone at the end."""

import asyncio

import httpx
import pytest

from tests.gateway.admin.issuer import AUDIENCE, running_issuer
from tests.scripted_engine import ScriptedEngine
from tests.warmlane_process import commands

pytestmark = pytest.mark.e2e


async def test_a_person_makes_a_key_that_works_and_the_log_names_them(tmp_path):
    """From the settings file to a request on the data plane; then the project goes, and its key is 401."""
    async with running_issuer() as issuer, ScriptedEngine() as engine:
        config = f"""
        [admin]
        oidc_issuer = "{issuer.url}"
        oidc_audience = "{AUDIENCE}"
        [[replicas]]
        name = "r1"
        model = "m"
        engine = "vllm"
        url = "{engine.url}"
        """
        with commands(tmp_path / "home") as start:
            running = start("gateway", config=config)
            await asyncio.to_thread(running.until_ready)
            headers = {"authorization": f"Bearer {issuer.token()}"}
            url = running.fields["admin"] + "/admin/v1"
            async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=30) as admin:
                org = (await admin.post("/organizations", json={"name": "acme"})).json()["id"]
                body = {"name": "chat", "organization_id": org}
                project = (await admin.post("/projects", json=body)).json()["id"]
                key = (await admin.post("/keys", json={"name": "k", "project_id": project})).json()
                models = running.fields["url"] + "/models"
                as_key = {"authorization": f"Bearer {key['secret']}"}
                assert (await admin.get(models, headers=as_key)).status_code == 200
                by = (await admin.get("/audit", params={"actor": "ada"})).json()["data"]
                assert [one["action"] for one in by] == ["key.created", "project.created", "organization.created"]
                deleted = await admin.delete(f"/projects/{project}?cascade=true")
                assert deleted.headers["x-warmlane-applied"] == "true"
                assert (await admin.get(models, headers=as_key)).status_code == 401
                scoped = {"authorization": f"Bearer {issuer.token(roles=['viewer'], organization=org)}"}
                assert (await admin.get("/replicas", headers=scoped)).status_code == 403
            assert await asyncio.to_thread(running.end) == 0, running.stderr
        assert key["secret"] not in running.stderr
        assert headers["authorization"].removeprefix("Bearer ") not in running.stderr
