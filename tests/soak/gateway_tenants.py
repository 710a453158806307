"""The tenants of a soak, made through the admin plane."""

from collections.abc import Mapping
from typing import Any

import httpx

from tests.soak.gateway_traffic import TENANTS, WRONG_KEY


class Tenants:
    """Each tenant's key."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = keys

    @classmethod
    async def create(cls, ready: Mapping[str, str]) -> "Tenants":
        """Projects with their limits, through the admin plane."""
        async with admin_client(ready) as admin:

            async def made(path: str, body: dict[str, Any]) -> dict[str, Any]:
                return dict((await admin.post(path, json=body)).raise_for_status().json())

            organization = await made("/organizations", {"name": "soak"})
            keys = {}
            for name, (_, limits) in TENANTS.items():
                project = await made("/projects", {"name": name, "organization_id": organization["id"]})
                if limits:
                    (await admin.put(f"/projects/{project['id']}/limits", json=limits)).raise_for_status()
                keys[name] = (await made("/keys", {"name": name, "project_id": project["id"]}))["secret"]
        return cls(keys)

    def key(self, name: str | None) -> str:
        """Its key; None: one that nobody has."""
        return WRONG_KEY if name is None else self._keys[name]


def admin_client(ready: Mapping[str, str]) -> httpx.AsyncClient:
    """For the admin plane's paths."""
    headers = {"authorization": f"Bearer {ready['admin_token']}"}
    return httpx.AsyncClient(base_url=f"{ready['admin']}/admin/v1", headers=headers, timeout=20)
