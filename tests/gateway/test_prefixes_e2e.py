"""Prefix diagnosis through a whole gateway: requests in, a finding on the control socket, nothing said in it."""

import httpx
import pytest

from tests.gateway.kit import MODEL

SECRET = "Alder's secret plan. "


@pytest.fixture
async def told(launch):
    """(gateway, what it tells of prefixes, as text and as JSON)."""
    gateway = await launch()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gateway.gateway.control), base_url="http://c") as client:

        async def ask():
            answer = await client.get("/prefixes")
            return answer.text, answer.json()["data"]

        yield gateway, ask


def dated(number):
    """A system prompt with a date in it, then a question."""
    system = f"Today is 2026-12-{number:02}. " + SECRET * 300
    return [{"role": "system", "content": system}, {"role": "user", "content": "question " + "x" * number}]


async def test_a_date_in_the_system_prompt_is_found_to_the_byte(told):
    """Role, byte and cost, and not a word of what was said."""
    gateway, ask = told
    for number in range(1, 10):
        await gateway.post({"model": MODEL, "messages": dated(number), "max_tokens": 2})
    text, [row] = await ask()
    assert (row["project_id"], row["organization_id"]) == (gateway.project, gateway.organization)
    assert (row["model"], row["prompts"]) == (MODEL, 8)
    place = row["places"][0]
    assert (place["message"], place["role"], place["from_byte"], place["to_byte"]) == (0, "system", 18, 18)
    assert place["lost_tokens"] > 8 * 1000
    assert "message 0 (system) at byte 18" in row["finding"]
    assert "Alder" not in text


async def test_a_project_that_is_deleted_is_forgotten(told):
    """With its records."""
    gateway, ask = told
    for number in range(1, 3):
        await gateway.post({"model": MODEL, "messages": dated(number)})
    assert len((await ask())[1]) == 1
    await gateway.store.delete_project(gateway.project, cascade=True)
    await gateway.parts.directory.refresh()
    assert (await ask())[1] == []
