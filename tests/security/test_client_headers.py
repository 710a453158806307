"""P11: what engines are told comes from the key alone; no header of a client passes, however it is spelt or repeated."""

from collections import Counter

import pytest

from tests.gateway.conftest import launch, way  # noqa: F401  # fixtures
from tests.gateway.kit import chat

STEERING = [  # of the gateway's own kind, and of engines and proxies (engines.md, trap 13)
    *("x-tenant-id", "x-tenant", "x-user-id", "x-organization-id", "x-project-id", "x-warmlane-tenant", "x-cache-salt"),
    *("x-vllm-priority", "x-data-parallel-rank", "x-session-id", "x-override-rid", "x-override-priority"),
    *("x-worker-instance-id", "x-prefill-instance-id", "x-dp-rank", "x-conversation-id", "x-dynamo-request-id"),
    *("x-session-affinity", "x-litellm-tags", "openai-organization", "openai-project", "cache-salt", "priority"),
    *(
        "cookie",
        "forwarded",
        "x-forwarded-for",
        "x-real-ip",
        "via",
        "baggage",
        "tracestate",
        "te",
        "proxy-authorization",
    ),
]
SET_ANEW = {
    "host",
    "accept-encoding",
    "content-length",
    "content-type",
    "x-request-id",
    "traceparent",
    "authorization",
    "user-agent",
}
MARK = "from-the-client"


def spellings(name):
    """The name as it is, in odd case, with underscores, and once more."""
    yield from (name, name.title(), name.upper(), name.replace("-", "_"), name)


@pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)
@pytest.mark.parametrize("kind", ["warmlane", "vllm", "llama-server", "openai"])
async def test_an_engine_sees_the_gateways_headers_once_and_no_others(launch, kind):  # noqa: F811
    """Internal headers are made anew; a duplicate, an odd case or an underscore is no way past that."""
    gateway = await launch(kind=kind)
    headers = [(spelt, MARK) for name in STEERING for spelt in spellings(name)]
    assert (await gateway.post(chat(), headers=headers)).status == 200
    sent = (await gateway.received()).headers
    names = Counter(name for name, _ in sent)
    assert set(names) <= SET_ANEW, names
    assert set(names.values()) == {1}
    assert MARK not in str(sent)


async def test_a_clients_own_key_and_id_stay_inside(launch):  # noqa: F811
    """The engine gets neither: its key is the operator's, its id the attempt's."""
    gateway = await launch(kind="vllm")
    await gateway.post(chat(), headers=[("x-request-id", MARK)])
    sent = await gateway.received()
    assert sent.header("authorization") is None
    assert sent.header("x-request-id").startswith(gateway.records[-1].request_id)
    assert gateway.key not in str(sent.headers) + sent.body.decode()


async def test_no_header_or_field_moves_anothers_numbers(launch):  # noqa: F811
    """Usage and limits move for the key's project only, and `user` is nobody's quota."""
    gateway = await launch()
    birch_project = await gateway.new_project('{"rpm": 5}')
    birch = await gateway.new_key(birch_project)
    await gateway.limit(gateway.project, '{"rpm": 5}')
    alder = gateway.project
    headers = [(spelt, alder) for name in STEERING[:7] for spelt in spellings(name)]
    body = chat(user=alder, metadata={"tenant": alder, "project_id": alder}, project_id=alder, organization=alder)
    left = [
        (await gateway.post(body, key=birch, headers=headers)).header("x-ratelimit-remaining-requests")
        for _ in range(3)
    ]
    assert left == ["4", "3", "2"]
    assert (await gateway.post(chat())).header("x-ratelimit-remaining-requests") == "4"
    assert [record.project for record in gateway.records] == [birch_project] * 3 + [alder]
