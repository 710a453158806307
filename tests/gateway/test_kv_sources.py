"""Where a replica publishes: by the configuration, or as it says when asked, and never where no engine can be."""

import msgspec
import pytest

from gateway.kv_sources import DISCOVER, OFF, KvSource, NoSource, configured, discovered
from gateway.settings import Settings

URL = "http://10.0.0.5:8000"


def listed(*sources):
    return msgspec.json.encode(list(sources))


def source(**changes):
    return {"data_parallel_rank": 0, "endpoint": "tcp://10.0.0.5:5557", "replay_endpoint": None, "topic": ""} | changes


@pytest.mark.parametrize(
    ("kv_events", "engine", "found"),
    [
        ("", "warmlane", DISCOVER),
        ("", "vllm", OFF),
        ("off", "warmlane", OFF),
        ("discover", "vllm", DISCOVER),
        ("tcp://h:1", "vllm", KvSource("tcp://h:1")),
        ("tcp://h:1,tcp://h:2", "vllm", KvSource("tcp://h:1", "tcp://h:2")),
        ("ipc:///run/kv", "vllm", KvSource("ipc:///run/kv")),
    ],
)
def test_the_configuration_decides_and_our_own_workers_are_asked_without(kv_events, engine, found):
    """Empty means what is usual for the engine."""
    assert configured(kv_events, engine) == found


@pytest.mark.parametrize(
    "kv_events",
    ["on", "http://h:1", "tcp://h", "tcp://h:0", "tcp://h:70000", "tcp://*:5557", "tcp://a:1,tcp://b:2,tcp://c:3",
     "tcp://a:1,", "tcp://169.254.169.254:80", "tcp://0.0.0.0:5557", "tcp://h:1;rm", "inproc://x", "ipc://"],
)  # fmt: skip
def test_what_cannot_be_subscribed_to_is_refused_in_the_file(kv_events):
    """A typing mistake shows at start-up."""
    replica = {"name": "r", "model": "m", "engine": "vllm", "url": "http://127.0.0.1:1", "kv_events": kv_events}
    with pytest.raises(ValueError, match="kv_events"):
        Settings(replicas=[replica])


def test_what_the_file_says_is_kept():
    """As it stands."""
    replica = {"name": "r", "model": "m", "engine": "vllm", "url": "http://127.0.0.1:1", "kv_events": "tcp://h:1"}
    assert Settings(replicas=[replica]).replicas[0].kv_events == "tcp://h:1"


def test_vllms_list_is_read():
    """A bare array, one entry a rank."""
    assert discovered(listed(source(topic="kv")), URL) == KvSource("tcp://10.0.0.5:5557", None, "kv")
    assert discovered(listed(source(topic=None, novelty=1)), URL) == KvSource("tcp://10.0.0.5:5557")


@pytest.mark.parametrize(
    ("url", "host"), [(URL, "10.0.0.5"), ("http://[::1]:8000", "[::1]"), ("http://engine:80/x", "engine")]
)
def test_a_wildcard_is_the_replicas_own_host(url, host):
    """Engines tell what they listen on."""
    body = listed(source(endpoint="tcp://*:5557", replay_endpoint="tcp://0.0.0.0:5558"))
    assert discovered(body, url) == KvSource(f"tcp://{host}:5557", f"tcp://{host}:5558")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{}", "as vLLM does"),
        (b"[3]", "as vLLM does"),
        (b"nonsense", "as vLLM does"),
        (b"[" * 100_000, "as vLLM does"),
        (listed(), "no KV events"),
        (listed(source(), source(data_parallel_rank=1)), "several caches"),
        (listed(source(endpoint="tcp://169.254.169.254:80")), "cannot be subscribed to"),
        (listed(source(endpoint="file:///etc/passwd")), "cannot be subscribed to"),
        (listed(source(replay_endpoint="tcp://x")), "cannot be subscribed to"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_sentence(body, why):
    """The admin plane shows it as the problem."""
    with pytest.raises(NoSource, match=why):
        discovered(body, URL)
