"""Metrics: counted once, labelled from closed sets only, and gone with what they described."""

import random

import pytest
from prometheus_client.parser import text_string_to_metric_families

from observability.gauges import READ_AT_SCRAPE
from observability.metrics import OTHER_MODEL, Metrics, exposition
from observability.records import RequestRecord

MODELS = frozenset({"small-a", "small-b"})


def record(**changes):
    """A finished request."""
    values = {"request_id": "req_1", "started_at": 1.0, "surface": "/v1/chat/completions", "model": "small-a"}
    values |= {"lane": "bulk", "outcome": "finished", "status": 200, "duration_s": 1.0}
    return RequestRecord(**{**values, **changes})


def samples(metrics):
    """{(name, labels): value} of everything exposed."""
    families = text_string_to_metric_families(metrics.text().decode())
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def value(metrics, name, **labels):
    """One sample, None if there is no such series."""
    return samples(metrics).get((name, frozenset(labels.items())))


@pytest.fixture
def metrics():
    """Metrics of two models, without gauges."""
    return Metrics(lambda: MODELS, list)


def test_a_request_is_counted_with_its_outcome(metrics):
    """Once."""
    metrics.observe(record())
    metrics.observe(record(outcome="client_gone"))
    labels = {"model": "small-a", "lane": "bulk"}
    assert value(metrics, "warmlane_requests_total", **labels, outcome="finished") == 1
    assert value(metrics, "warmlane_requests_total", **labels, outcome="client_gone") == 1


def test_tokens_are_summed_and_absence_adds_nothing(metrics):
    """What an engine does not report is not zero."""
    metrics.observe(record(prompt_tokens=100, cached_tokens=40, predicted_hit_tokens=50, completion_tokens=7))
    metrics.observe(record(prompt_tokens=11))
    metrics.observe(record())
    assert value(metrics, "warmlane_prompt_tokens_total", model="small-a") == 111
    assert value(metrics, "warmlane_prefix_hit_tokens_total", model="small-a", source="reported") == 40
    assert value(metrics, "warmlane_prefix_hit_tokens_total", model="small-a", source="predicted") == 50


def test_times_go_to_their_histograms(metrics):
    """Only those that were reached."""
    metrics.observe(record(ttft_s=0.3, mean_itl_s=0.02, queue_s=0.0, gateway_s=0.0002))
    metrics.observe(record())
    labels = {"model": "small-a", "lane": "bulk"}
    for name in (
        "gen_ai_server_time_to_first_token_seconds",
        "gen_ai_server_time_per_output_token_seconds",
        "warmlane_queue_seconds",
    ):
        assert value(metrics, f"{name}_count", **labels) == 1
    assert value(metrics, "warmlane_gateway_overhead_seconds_count") == 1
    assert value(metrics, "gen_ai_server_time_to_first_token_seconds_bucket", **labels, le="0.5") == 1
    assert value(metrics, "gen_ai_server_time_to_first_token_seconds_bucket", **labels, le="0.25") == 0


def test_only_refusals_count_as_limit_refusals(metrics):
    """By the limit's name."""
    metrics.observe(record(outcome="refused", reason="rpm", status=429))
    metrics.observe(record(outcome="client_error", reason="model_not_found", status=404))
    metrics.observe(record(outcome="refused"))
    assert value(metrics, "warmlane_limit_refusals_total", reason="rpm") == 1
    assert value(metrics, "warmlane_limit_refusals_total", reason="model_not_found") is None


def test_an_unknown_model_is_other(metrics):
    """Names that clients make up are no labels."""
    metrics.observe(record(model="made-up", prompt_tokens=1))
    metrics.observe(record(model=""))
    assert value(metrics, "warmlane_requests_total", model=OTHER_MODEL, lane="bulk", outcome="finished") == 2


def test_random_names_do_not_grow_the_metrics(metrics):
    """P40: 100,000 requests with names of their own leave the series of a few, and a scrape below 1 MB."""
    lanes, outcomes = ("interactive", "standard", "bulk"), ("finished", "refused", "client_gone")
    for model in (*MODELS, "x"):
        for lane in lanes:
            for outcome in outcomes:
                metrics.observe(
                    record(model=model, lane=lane, outcome=outcome, reason="rpm", prompt_tokens=1, ttft_s=0.1)
                )
    before = len(samples(metrics))
    chance = random.Random(40)
    for number in range(100_000):
        changes = {"request_id": f"req_{number}", "requested_model": f"m{number}", "project": f"p{number % 5000}"}
        changes |= {"client_request_id": str(number), "replica": f"r{number}", "key": f"k{number}", "reason": "rpm"}
        changes |= {"lane": chance.choice(lanes), "outcome": chance.choice(outcomes), "prompt_tokens": 1, "ttft_s": 0.1}
        metrics.observe(record(model=f"model-{chance.random()}", **changes))
    assert len(samples(metrics)) == before
    assert len(metrics.text()) < 1_000_000


def test_gauges_are_read_at_each_scrape_so_removed_replicas_leave_no_series():
    """P40: replicas come and go with new addresses."""
    rows = []
    metrics = Metrics(lambda: MODELS, lambda: iter(rows))
    for number in range(50):
        rows[:] = [("warmlane_replica_seats", {"replica": f"r{number}"}, 4)]
        assert value(metrics, "warmlane_replica_seats", replica=f"r{number}") == 4
    names = {labels for name, labels in samples(metrics) if name == "warmlane_replica_seats"}
    assert names == {frozenset({("replica", "r49")})}
    rows.clear()
    assert "warmlane_replica_seats" not in metrics.text().decode()


def test_what_shadow_mode_let_through_is_counted_apart(metrics):
    """Nobody should be woken by a limit that refuses nothing, and an operator must see what it would have done."""
    metrics.observe(record(outcome="refused", reason="rpm", limit="project.rpm", status=429))
    metrics.observe(record(limit="shadow.project.rpm"))
    metrics.observe(record(limit="shadow.organization.tpm"))
    metrics.observe(
        record(outcome="forbidden", reason="model_not_priced", limit="project.model_not_priced", status=403)
    )
    for reason in ("rpm", "shadow_rpm", "shadow_tpm", "model_not_priced"):
        assert value(metrics, "warmlane_limit_refusals_total", reason=reason) == 1


def test_the_reference_names_every_counted_metric(metrics):
    """The page is made from this."""
    metrics.observe(
        record(
            outcome="refused",
            reason="rpm",
            prompt_tokens=1,
            cached_tokens=1,
            ttft_s=1.0,
            mean_itl_s=1.0,
            queue_s=1.0,
            gateway_s=1.0,
            attempts=2,
            lost_attempts=1,
            lost_tokens=1,
            hedge="won",
        )
    )
    metrics.budget_reached(80)
    exposed = {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name, _ in samples(metrics)}
    assert {one.name for one in metrics.counted()} == exposed
    assert all(one.meaning.endswith(".") for one in metrics.counted())


def test_two_processes_in_one_do_not_share_counts():
    """A registry each; no global."""
    one, other = Metrics(lambda: MODELS, list), Metrics(lambda: MODELS, list)
    one.observe(record())
    assert value(other, "warmlane_requests_total", model="small-a", lane="bulk", outcome="finished") is None


def test_attempts_and_what_was_lost_in_them_are_counted(metrics):
    """P38: requests count operations, attempts their tries; what no tenant pays for is the operator's to see."""
    metrics.observe(record(attempts=3, lost_attempts=2, lost_tokens=150))
    metrics.observe(record(attempts=1))
    metrics.observe(record(model="unheard-of", attempts=1, lost_attempts=1, lost_tokens=7))
    assert value(metrics, "warmlane_attempts_total", model="small-a") == 4
    assert value(metrics, "warmlane_attempts_lost_total", model="small-a") == 2
    assert value(metrics, "warmlane_attempts_lost_tokens_total", model="small-a") == 150
    assert value(metrics, "warmlane_attempts_lost_total", model=OTHER_MODEL) == 1


def test_what_another_part_counts_is_a_counter_by_its_name():
    """Rates are made of counters alone."""
    text = exposition(lambda: [("warmlane_x_total", {}, 3), ("warmlane_y", {"replica": "r1"}, 2)])
    assert "# TYPE warmlane_x_total counter" in text
    assert "warmlane_x_total 3.0" in text
    assert "# TYPE warmlane_y gauge" in text
    assert 'warmlane_y{replica="r1"} 2.0' in text


def test_what_is_read_at_a_scrape_is_explained():
    """The help text is what a person sees beside the number."""
    named = [(one.name, dict.fromkeys(one.labels, "x"), 1.0) for one in READ_AT_SCRAPE]
    lines = exposition(lambda: named).splitlines()
    for one in READ_AT_SCRAPE:
        assert f"# HELP {one.name} {one.meaning}" in lines
        assert f"# TYPE {one.name} {one.kind}" in lines
