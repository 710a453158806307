"""`POST /replicas/{name}/release`: an operator's word that an engine's cache was cleared, at every gateway."""

import pytest

from gateway.admin.control_client import ControlError, GatewayControl

PATH = "/replicas/llama%2F1/release"
RELEASED = {"name": "llama/1", "state": "draining"}
REFUSED = {"error": {"message": "drain it first", "type": "invalid_request_error", "code": "not_releasable"}}


async def test_a_release_is_passed_on_and_answered(admin, gateway):
    """The replica as it is then."""
    gateway.will("POST", PATH, RELEASED)
    answer = await admin.post("/admin/v1/replicas/llama/1/release")
    assert (answer.status_code, answer.json()) == (200, RELEASED)


async def test_a_refusal_keeps_its_sentence(admin, gateway):
    """What has to be done first is the gateway's to say."""
    gateway.will("POST", PATH, REFUSED, status=409)
    answer = await admin.post("/admin/v1/replicas/llama/1/release")
    assert (answer.status_code, answer.json()) == (409, REFUSED)


async def test_an_unknown_replica_is_404(admin):
    """As it is for a drain."""
    answer = await admin.post("/admin/v1/replicas/none/release")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_replica")


async def test_one_gateway_that_refuses_is_enough(start_gateway):
    """A gateway that still has a request there must not be talked over by those that have none."""
    gateways = [await start_gateway() for _ in range(3)]
    control = GatewayControl(lambda: [one.socket for one in gateways], timeout_s=5.0)
    for one in gateways[:2]:
        one.will("POST", PATH, RELEASED)
    assert (await control.release("llama/1"))[0] == 200  # the third does not know it yet
    gateways[1].will("POST", PATH, REFUSED, status=409)
    assert (await control.release("llama/1"))[0] == 409
    gateways[0].is_silent = True
    quick = GatewayControl(lambda: [one.socket for one in gateways], timeout_s=0.05)
    with pytest.raises(ControlError):
        await quick.release("llama/1")
