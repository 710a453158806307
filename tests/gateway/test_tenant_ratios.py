"""How long a prompt is believed to be is learned from its own tenant's prompts: others cannot make limits refuse it."""

import asyncio

import pytest

from cache_affinity.ratio import TokenRatios
from gateway.reserving import UNREPORTED_BYTES
from gateway.tenant_ratios import FIRST_LEAST, FIRST_MOST, TenantRatios
from tests.gateway.kit import chat
from tests.scripted_engine import answer

PROMPT = "Hello world, a prompt " * 150  # some 3,300 bytes


async def poisoned(gateway, bytes_per_token):
    """Another project, of its own organisation, sends 40 texts that no prose is like."""
    stranger = (await gateway.store.create_organization("stranger")).id
    key = await gateway.new_key(await gateway.new_project(organization=stranger))
    for number in range(40):
        gateway.script(answer("a", prompt_tokens=round(2030 / bytes_per_token)))
        assert (await gateway.post(chat(f"{number:04} " + "\u00e9" * 1000), key=key)).status == 200


async def test_another_tenants_dense_texts_do_not_make_a_limit_refuse(launch):
    """A prompt of 800 tokens fits into 3,000, whatever is sent beside it."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"tpm": 3000}')
    await poisoned(gateway, 0.6)
    got = await gateway.post(chat(PROMPT, max_tokens=5))
    assert got.status == 200
    assert gateway.records[-1].reserved_tokens == pytest.approx(len(PROMPT) / FIRST_LEAST, rel=0.05)


async def test_another_tenants_texts_change_little_of_what_leaving_early_costs(launch):
    """And nothing once the tenant has sent prompts of its own."""
    gateway = await launch()
    own = []
    for _ in range(30):
        gateway.script(answer("a", prompt_tokens=len(PROMPT) // 4))
        await gateway.post(chat(PROMPT, max_tokens=5))
    for bytes_per_token in (None, 0.6, 15.0):
        if bytes_per_token is not None:
            await poisoned(gateway, bytes_per_token)
        gateway.script(answer("c", gates={2: asyncio.Event()}))
        client = await gateway.start(chat(PROMPT, stream=True))
        await client.until('"c"')
        client.close()
        await gateway.until_quiet()
        assert gateway.records[-1].is_estimated
        own.append(gateway.records[-1].prompt_tokens)
    assert own == [own[0]] * 3
    assert own[0] == pytest.approx(len(PROMPT) / 4, rel=0.05)


async def test_nobody_teaches_that_its_prompts_are_short_and_then_leaves_early(launch):
    """Thirty prompts of blanks, 16 bytes a token; the dense one after them is charged as prose at least."""
    gateway = await launch()
    for _ in range(30):
        gateway.script(answer("a", prompt_tokens=len(PROMPT) // 16 + 5))
        await gateway.post(chat(" " * len(PROMPT), max_tokens=5))
    gateway.script(answer("c", gates={2: asyncio.Event()}))
    client = await gateway.start(chat(PROMPT, stream=True))
    await client.until('"c"')
    client.close()
    await gateway.until_quiet()
    assert gateway.records[-1].reserved_tokens < len(PROMPT) / 10, "believed, until it ends without a report"
    assert gateway.records[-1].prompt_tokens == pytest.approx(len(PROMPT) / UNREPORTED_BYTES, rel=0.05)


def everybodys(bytes_per_token):
    """What is known of the model m from all that was sent."""
    ratios = TokenRatios()
    ratios.of("m").bytes_per_token = bytes_per_token
    return ratios


def test_a_newcomer_begins_with_the_models_ratio_within_reason():
    """Outside of it somebody may have sent odd texts on purpose."""
    ratios = TenantRatios()
    assert ratios.of("a", "m", everybodys(3.0)).bytes_per_token == 3.0
    assert ratios.of("b", "m", everybodys(0.5)).bytes_per_token == FIRST_LEAST
    assert ratios.of("c", "m", everybodys(16.0)).bytes_per_token == FIRST_MOST
    assert ratios.of("a", "m", everybodys(4.0)) is not ratios.of("a", "n", everybodys(4.0))
    assert ratios.of("a", "m", everybodys(4.0)).bytes_per_token == 3.0


def test_the_oldest_are_forgotten():
    """Bounded, however many projects there are."""
    ratios = TenantRatios(max_flows=2)
    second = [ratios.of(name, "m", everybodys(3.0)) for name in "ab"][1]
    ratios.of("c", "m", everybodys(3.0))
    assert len(ratios) == 2
    assert ratios.of("b", "m", everybodys(4.0)) is second
    assert ratios.of("a", "m", everybodys(2.5)).bytes_per_token == 2.5
