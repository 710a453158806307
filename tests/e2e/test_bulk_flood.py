"""A flood of bulk on real workers: people's requests pass it in the gateway's queue, and all of it is done afterwards."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from engines.launch.demo_model import DEMO_MODEL_NAME
from engines.step_cost import StepCost
from tests.e2e.conftest import assert_quiescent
from tests.warmlane_process import PATIENCE_S, until

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]

NUM_BULK = 50
WAVES, NUM_AT_ONCE = 3, 4  # of interactive requests


@pytest.fixture(scope="module")
def bulk_key(demo):
    """A key of a project of its own that may use no lane but bulk."""
    organization = demo.admin("/organizations", "POST", {"name": "flood"})
    project = demo.admin("/projects", "POST", {"name": "flood", "organization_id": organization["id"]})
    body = {"name": "flood", "project_id": project["id"], "max_lane": "bulk", "default_lane": "bulk"}
    return demo.admin("/keys", "POST", body)["secret"]


def asked(demo, words, max_tokens, key=None):
    """A short chat with the demo model."""
    fields = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return demo.chat(key, model=DEMO_MODEL_NAME, messages=[{"role": "user", "content": words}], **fields)


def record_of(demo, answer):
    """The record of an answered request, once it is written."""

    def found():
        try:
            return demo.admin(f"/requests/{answer.headers['x-request-id']}")
        except AssertionError:  # the answer's last byte may be read before its record is there
            return None

    return until(found)


def num_bulk_waiting(demo):
    """Bulk requests in the gateway's queue."""
    return demo.admin("/queue")["waiting"].get(DEMO_MODEL_NAME, {}).get("bulk", 0)


def until_flooded(demo):
    """Wait until bulk has all the seats it may have, and more of it waits."""
    until(lambda: num_bulk_waiting(demo), lambda: "the flood never filled the seats")


def step_of_a_full_batch_s(demo):
    """What the slower worker has learned of a step in which all seats decode. Steps that read prompts take longer."""
    steps = []
    for replica in demo.admin("/replicas")["data"]:
        load = httpx.get(f"{replica['url']}/load", timeout=PATIENCE_S).json()
        steps.append(StepCost(**load["step_cost"]).seconds(load["max_seqs"], 0))
    return max(steps)


def test_a_bulk_flood_never_delays_people_in_the_queue_by_more_than_a_step(demo, bulk_key):
    """Fifty bulk requests wait, those who talk are given a seat at once, and the flood is served to its end."""
    with ThreadPoolExecutor(NUM_BULK + NUM_AT_ONCE) as clients:
        flood = [
            clients.submit(asked, demo, f"{number} is a number. Name another.", 3 + number % 4, bulk_key)
            for number in range(NUM_BULK)
        ]
        until_flooded(demo)
        queued_s, step_s, waiting = [], [], []
        for wave in range(WAVES):
            waiting.append(num_bulk_waiting(demo))
            talks = [clients.submit(asked, demo, f"Hello {wave} {n}", 4) for n in range(NUM_AT_ONCE)]
            records = [record_of(demo, talk.result()) for talk in talks]
            assert {(record["lane"], record["outcome"]) for record in records} == {("interactive", "finished")}
            queued_s += [record["queue_s"] for record in records]
            step_s.append(step_of_a_full_batch_s(demo))
        flooded = [one.result() for one in flood]

    assert all(waiting), "bulk waited when each wave came"
    *at_once, _, _ = sorted(queued_s)  # twice a shared machine may do something else just then
    assert max(at_once) <= min(step_s), (queued_s, step_s)
    assert [answer.status_code for answer in flooded] == [200] * NUM_BULK
    bulk = [record_of(demo, answer) for answer in flooded]
    assert {(record["lane"], record["outcome"]) for record in bulk} == {("bulk", "finished")}
    assert max(record["queue_s"] for record in bulk) > max(queued_s)
    assert_quiescent(demo)
