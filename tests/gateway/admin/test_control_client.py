"""The supervisor's line to its gateways: sums, first answers, orders to all, and no wait without end."""

import asyncio
import json

import pytest

from gateway.admin.control_client import ControlError, GatewayControl


@pytest.fixture
async def two(start_gateway):
    gateways = [await start_gateway(), await start_gateway()]
    return gateways, GatewayControl(lambda: [gateway.socket for gateway in gateways], timeout_s=5.0)


async def test_statistics_queue_and_metrics_are_summed(two):
    """What is asked of the node is the sum over its processes."""
    (first, second), control = two
    for number, gateway in enumerate((first, second), start=1):
        gateway.will("GET", "/statistics", {"in_flight": {"requests": number}})
        gateway.will("GET", "/queue", {"interactive": number})
        gateway.will("GET", "/metrics", f"a_total {number}.0\n")
    assert await control.statistics() == {"in_flight": {"requests": 3}}
    assert await control.queue() == {"interactive": 3}
    assert await control.metrics() == "a_total 3.0\n"


async def test_the_gateway_that_knows_a_request_answers(two):
    """A request was served by one process; the others have never heard of it."""
    (_, second), control = two
    second.will("GET", "/requests/req_1", {"request_id": "req_1"})
    second.will("GET", "/requests/req_1/receipt", {"chosen": "a"})
    assert await control.request("req_1") == b'{"request_id": "req_1"}'
    assert await control.receipt("req_1") == b'{"chosen": "a"}'
    assert await control.request("req_2") is None


async def test_replicas_are_merged_and_each_gateways_view_can_be_had(two):
    """A person sees one row a replica; the supervisor waits until every gateway sees it ready."""
    gateways, control = two
    for number, gateway in enumerate(gateways, start=1):
        row = {"name": "a", "state": "ready", "in_flight": {"bulk": number}, "outstanding_tokens": number}
        gateway.will("GET", "/replicas", {"data": [row]})
    (row,) = json.loads(await control.replicas())["data"]
    assert (row["in_flight"], row["outstanding_tokens"]) == ({"bulk": 3}, 3)
    views = [json.loads(one)["data"][0]["outstanding_tokens"] for one in await control.replicas_of_each()]
    assert views == [1, 2]


async def test_orders_go_to_all(two):
    """A revocation, a fleet or a drain must hold on every process."""
    gateways, control = two
    for gateway in gateways:
        gateway.will("PUT", "/fleet")
        gateway.will("POST", "/replicas/a/drain", {"state": "draining"})
        gateway.will("POST", "/replicas/a/resume", {"state": "ready"})
    await control.refresh_directories()
    await control.set_fleet(b'{"replicas":[]}')
    assert await control.drain("a") == b'{"state": "draining"}'
    assert await control.resume("a") == b'{"state": "ready"}'
    assert await control.drain("b") is None
    for gateway in gateways:
        asked = {(method, path) for method, path, _ in gateway.asked}
        assert {("POST", "/directory/refresh"), ("PUT", "/fleet"), ("POST", "/replicas/a/drain")} <= asked
        assert b'{"replicas":[]}' in [body for _, _, body in gateway.asked]


async def test_an_order_that_one_gateway_refuses_is_an_error(two):
    """Half an order is not an order."""
    (_, second), control = two
    second.will("POST", "/directory/refresh", status=500)
    with pytest.raises(ControlError, match="status 500"):
        await control.refresh_directories()
    with pytest.raises(ControlError, match="status 404"):
        await control.set_fleet(b"{}")


async def test_a_silent_gateway_is_an_error_within_the_time(gateway):
    """An admin request must never hang on a gateway that does."""
    gateway.is_silent = True
    control = GatewayControl(lambda: [gateway.socket], timeout_s=0.05)
    with pytest.raises(ControlError, match=r"did not answer within 0\.05 s"):
        await control.statistics()


async def test_a_gateway_that_is_gone_is_an_error(sockets):
    """A socket without a listener, or no socket at all."""
    with pytest.raises(ControlError, match="cannot be reached"):
        await GatewayControl(lambda: [sockets / "none.sock"]).replicas()


async def test_without_gateways_questions_fail_and_a_refresh_is_done():
    """A gateway that is not there yet reads the store when it starts."""
    control = GatewayControl(list)
    await control.refresh_directories()
    with pytest.raises(ControlError, match="no gateway process is running"):
        await control.statistics()
    with pytest.raises(ControlError, match="no gateway process is running"):
        await control.explain(b"{}")


@pytest.mark.parametrize("answer", ["not json", "[]", ""])
async def test_an_answer_that_is_no_object_is_an_error(gateway, control, answer):
    """A confused gateway must not become an exception of the admin plane."""
    gateway.will("GET", "/statistics", answer)
    with pytest.raises(ControlError, match="not a JSON object"):
        await control.statistics()


async def test_a_gateway_that_was_restarted_is_reached_again(sockets, start_gateway, control, gateway):
    """No connection outlives its question, so none can be stale."""
    gateway.will("GET", "/queue", {"n": 1})
    assert await control.queue() == {"n": 1}
    assert await asyncio.gather(*(control.queue() for _ in range(20))) == [{"n": 1}] * 20


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a?b", "a#b", "a%2fb", "a b", "é", "\n"])
async def test_a_name_stays_in_its_segment(gateway, control, name):
    """No name that a caller gives may turn into another control route."""
    assert await control.request(name) is None
    _, path, _ = gateway.asked[-1]
    assert path.count("/") == 2
    assert not set(path.removeprefix("/requests/")) & set("/.?# ")
