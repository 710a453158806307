"""What a pool has learned of its replicas' capacity: one factor for a kind, whoever is of it now."""

from cache_affinity.capacity import Remembered
from routing.pool import ReplicaPool
from routing.pool_settings import PoolSettings
from tests.routing.fleet import spec

SETTINGS = PoolSettings(kv_tokens=4096)


def factor_of(pool, name):
    """What is learned for the replica."""
    return pool.get(name).shadow._factor


def learn_more(pool, name):
    """It had a prompt cached that it was taken to have evicted: the factor grows."""
    factor_of(pool, name).observe(Remembered(held=0, known=4096, age_share=0.0), 4096, 4096)


def test_replicas_of_a_kind_learn_together():
    """A large fleet learns as fast as one engine; another kind keeps its own."""
    pool = ReplicaPool(SETTINGS)
    for name, kv_tokens in (("r1", 4096), ("r2", 4096), ("r3", 8192)):
        pool.upsert(spec(name, kv_tokens=kv_tokens), 0.0)
    learn_more(pool, "r1")
    assert factor_of(pool, "r1").value > 1.0
    assert factor_of(pool, "r2") is factor_of(pool, "r1")
    assert factor_of(pool, "r3").value == 1.0


def test_a_replica_that_becomes_of_another_kind_goes_by_that_kinds_factor():
    """What was learned as a share of another size, or of another model, says nothing of it."""
    pool = ReplicaPool(SETTINGS)
    pool.upsert(spec("r1"), 0.0)
    pool.upsert(spec("r2", kv_tokens=8192), 0.0)
    learn_more(pool, "r1")
    learned = factor_of(pool, "r1")
    pool.upsert(spec("r1", kv_tokens=8192), 3.0)
    assert factor_of(pool, "r1") is factor_of(pool, "r2") is not learned
    assert factor_of(pool, "r1").value == 1.0


def test_what_was_learned_of_a_kind_that_is_gone_is_forgotten():
    """Else a gateway that sees many models would keep them all."""
    pool = ReplicaPool(SETTINGS)
    pool.upsert(spec("r1"), 0.0)
    learn_more(pool, "r1")
    pool.upsert(spec("r1", kv_tokens=8192), 3.0)
    pool.upsert(spec("r2"), 3.0)
    assert factor_of(pool, "r2").value == 1.0
    pool.remove("r1")
    pool.remove("r2")
    assert not pool._factors
