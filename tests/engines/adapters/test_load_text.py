"""Reading an engine's load out of Prometheus text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.adapters import ADAPTERS, adapter_for
from engines.contract import LoadReport

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="a} 9 {b"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0 1700000000000
vllm:num_requests_waiting_by_reason{reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:prefix_cache_hits_total{engine="0"} 12.0
"""


def test_vllm_counts_are_summed_over_ranks_and_kv_is_the_fullest():
    """One engine with several ranks is one replica; the fullest rank preempts first."""
    assert adapter_for("vllm").read_load(VLLM) == LoadReport(running=7, waiting=2, kv_used_ratio=0.5)


def test_our_workers_names_carry_our_prefix():
    """The same vocabulary under `warmlane:`, so that both can be scraped into one place."""
    assert adapter_for("warmlane").read_load(VLLM) == LoadReport()
    assert adapter_for("warmlane").read_load(VLLM.replace(b"vllm:", b"warmlane:")).running == 7


def test_older_vllm_names_its_cache_otherwise():
    """A fleet is seldom of one version."""
    assert adapter_for("vllm").read_load(b"vllm:gpu_cache_usage_perc 0.75\r\n").kv_used_ratio == 0.75


def test_llama_server_says_requests_and_no_kv():
    """It has no gauge for its cache."""
    text = b"llamacpp:requests_processing 2\nllamacpp:requests_deferred 1\nllamacpp:prompt_tokens_total 5\n"
    assert adapter_for("llama-server").read_load(text) == LoadReport(running=2, waiting=1)


def test_hosted_providers_say_nothing():
    """Their rate-limit headers speak instead."""
    assert adapter_for("openai").read_load(VLLM) == LoadReport()


@pytest.mark.parametrize("value", [b"", b"NaN", b"+Inf", b"-1", b"many", b"1e400", b"\xff"])
def test_a_value_that_cannot_be_a_count_is_none(value):
    """No number is better than a wrong one."""
    assert adapter_for("vllm").read_load(b"vllm:num_requests_running " + value) == LoadReport()


def test_a_ratio_over_one_is_full():
    """A ratio is 0 to 1 for whoever reads it."""
    assert adapter_for("vllm").read_load(b"vllm:kv_cache_usage_perc 1.5").kv_used_ratio == 1.0


@settings(max_examples=100, deadline=None)
@given(
    body=st.binary(max_size=200) | st.builds(lambda tail: b"vllm:num_requests_running" + tail, st.binary(max_size=40))
)
def test_no_body_makes_it_raise(body):
    """A scrape that answers nonsense must not stop the health loop: counts are counts and a ratio a ratio, or none."""
    for adapter in ADAPTERS.values():
        load = adapter.read_load(body)
        assert all(count is None or count >= 0 for count in (load.running, load.waiting))
        assert load.kv_used_ratio is None or 0 <= load.kv_used_ratio <= 1
