"""The key `priority` of an attached replica, from the file to what is known of the replica."""

import pytest

from gateway.fleet import Fleet
from gateway.settings import ConfigError, Settings, load
from routing.pool import ReplicaPool

REPLICA = {"name": "gpu", "model": "m", "engine": "vllm", "url": "http://127.0.0.1:9"}


@pytest.mark.parametrize("has_priority", [False, True])
def test_the_pool_knows_which_servers_order_by_priority(has_priority):
    """The seat control asks it there."""
    pool = ReplicaPool()
    fleet = Fleet(Settings(replicas=[{**REPLICA, "priority": has_priority}]), pool, lambda: 0.0, lambda: None)
    assert pool.get("gpu").spec.capabilities.priority is has_priority
    assert fleet.connection("gpu").adapter.capabilities.priority is has_priority
    fleet.close()


def test_priority_for_an_engine_without_is_named_as_a_bad_key(tmp_path):
    """The operator reads it at the start."""
    path = tmp_path / "w.toml"
    path.write_text(
        '[[replicas]]\nname = "a"\nmodel = "m"\nengine = "llama-server"\nurl = "http://h:1"\npriority = true\n'
    )
    with pytest.raises(ConfigError, match="knows no priorities"):
        load(path)
