"""A store's URL taken apart: every layout, what of it may be shown, and a sentence for what cannot be used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.redis_address import SCHEMES, Layout, parse_address
from policies.store import StoreError


def test_a_sole_server_keeps_its_url_as_redis_py_reads_it():
    """Options and login pass untouched, and none of them is in the name."""
    url = "rediss://ann:hush@redis.example:7000/2?ssl_cert_reqs=none"
    address = parse_address(url)
    assert address.layout is Layout.SOLE
    assert address.url_of(address.places[0]) == url
    assert address.name == "rediss://redis.example:7000/2"


def test_sentinels_have_a_service_a_database_and_a_login_of_their_own():
    """The primary's login is not sent to the sentinels."""
    address = parse_address(
        "rediss+sentinel://ann:hush@a:1,b,[::1]:3/main/4?sentinel_password=a%2Fb&ssl_cert_reqs=none&health_check_interval=5"
    )
    assert (address.layout, address.service) == (Layout.SENTINEL, "main")
    assert address.places == (("a", 1), ("b", 26379), ("::1", 3))
    assert address.url_of(("p", 6)) == "rediss://ann:hush@p:6/4?ssl_cert_reqs=none&health_check_interval=5"
    assert address.url_of_sentinel(("::1", 3)) == "rediss://:a%2Fb@[::1]:3?ssl_cert_reqs=none"
    assert address.name == "rediss+sentinel://a:1,b,[::1]:3/main/4"
    assert parse_address("redis+sentinel://a/main").url_of_sentinel(("a", 26379)) == "redis://a:26379"


def test_a_cluster_has_many_first_servers_and_no_database():
    """Any of them tells where the others are."""
    address = parse_address("redis+cluster://:hush@a:1,b/?protocol=2")
    assert address.places == (("a", 1), ("b", 6379))
    assert address.url_of(("c", 9)) == "redis://:hush@c:9/0?protocol=2"


def test_a_socket_has_no_place():
    """A file instead of a host."""
    assert parse_address("unix:///run/redis.sock").places == ()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("sqlite:///x", "not supported"),
        ("redis+nothing://a", "not supported"),
        ("redis://a,b", "several hosts"),
        ("redis+cluster://a/1", "no databases"),
        ("redis+sentinel://a", "knows the primary by"),
        ("redis+sentinel://a/main/db", "knows the primary by"),
        ("redis+sentinel://a/main/0/1", "knows the primary by"),
        ("redis+sentinel://a,,b/main", "lacks a host"),
        ("redis+cluster://a:port", "cannot be read"),
        ("redis+cluster://[::1", "cannot be read"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(url, sentence):
    """An operator must learn what is wrong."""
    with pytest.raises(StoreError, match=sentence):
        parse_address(url)


@given(st.text(max_size=60), st.sampled_from(SCHEMES), st.booleans())
def test_any_url_is_an_address_or_a_sentence_without_its_password(rest, scheme, has_login):
    """Nothing else may come out, and never the password."""
    login = "ann:hush-hush@" if has_login else ""
    try:
        address = parse_address(f"{scheme}://{login}{rest}")
    except StoreError as error:
        sentence = str(error)
    else:
        sentence = address.name
    if "@" not in rest and "/" not in rest and "?" not in rest and "#" not in rest:
        assert "hush-hush" not in sentence
