"""Who may meet on an engine without a cache salt (case P10)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.contract import Capabilities
from routing.filters import Rejection
from routing.isolation import CacheOwners, Separation, separation_of
from routing.replica import ReplicaSpec
from routing.router import Router
from tests.routing.fleet import Fleet

SALTED = ReplicaSpec("r1", "m", "vllm", "http://h:1", 8, capabilities=Capabilities(cache_salt=True))
PLAIN = ReplicaSpec("r2", "m", "llama-server", "http://h:2", 8)
SHARED = replace(PLAIN, is_cache_shared=True)


@pytest.mark.parametrize(
    ("spec", "separation"), [(SALTED, Separation.SALT), (PLAIN, Separation.OWNER), (SHARED, Separation.NONE)]
)
def test_a_salt_separates_else_an_owner_unless_sharing_is_accepted(spec, separation):
    """The default is the safe one: only the operator's word opens an undivided cache."""
    assert separation_of(spec) is separation


def test_an_engine_without_an_owner_is_open_to_nobody():
    """It must be claimed first, so that two tenants cannot both take it for theirs."""
    owners = CacheOwners()
    assert not owners.may_use("alder", PLAIN)
    owners.learn(PLAIN.url, "alder")
    assert owners.may_use("alder", PLAIN)
    assert not owners.may_use("birch", PLAIN)
    assert owners.may_use("birch", SALTED)
    assert owners.may_use("birch", SHARED)


def test_two_replicas_at_one_engine_have_one_owner():
    """Another name for the same URL is the same cache."""
    owners = CacheOwners()
    owners.learn(PLAIN.url, "alder")
    assert owners.may_use("alder", replace(PLAIN, name="r3", model="other"))
    assert not owners.may_use("birch", replace(PLAIN, name="r3", model="other"))
    owners.forget(PLAIN.url)
    assert owners.owner(PLAIN.url) is None


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.sampled_from(["learn", "forget"]), st.sampled_from("xyz"))))
def test_at_any_moment_at_most_one_domain_may_use_an_engine(steps):
    """Whatever is learned and forgotten, in whatever order."""
    owners = CacheOwners()
    for url, verb, domain in steps:
        owners.learn(url, domain) if verb == "learn" else owners.forget(url)
        spec = replace(PLAIN, url=url)
        assert [one for one in "xyz" if owners.may_use(one, spec)] == ([domain] if verb == "learn" else [])
    owners.replace({"A": "x"})
    assert [owners.owner(url) for url in "ABC"] == ["x", None, None]


def test_the_router_asks_by_cache_domain_and_only_where_there_is_no_salt():
    """Projects of one sharing group are one domain; a salted engine costs no question."""
    fleet = Fleet(2)
    asked = []

    def may_use(domain, spec):
        asked.append((domain, spec.name))
        return domain == "org/team"

    router = Router(fleet.pool, fleet.router.ratios, may_use=may_use)
    query = fleet.query("hello")
    assert {reason for _, reason in router.route(query, fleet.now).filtered} == {Rejection.NOT_ALLOWED}
    assert router.route(replace(query, cache_domain="org/team"), fleet.now).chosen in {"r1", "r2"}
    assert {domain for domain, _ in asked} == {query.project_id, "org/team"}
    for replica in fleet.pool:
        replica.spec = replace(replica.spec, capabilities=Capabilities(cache_salt=True))
    asked.clear()
    assert router.route(query, fleet.now).chosen in {"r1", "r2"}
    assert asked == []
