"""The inverted table of all shadows says what each of them says."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cache_affinity.holders import Holders
from cache_affinity.prefix import prefix_key
from cache_affinity.shadow import ShadowIndex

PATHS = st.lists(st.sampled_from(["a", "bb", "ccc"]), max_size=24)


def key_of(path):
    return prefix_key("m", "alder", [part.encode() for part in path])


@given(
    st.lists(
        st.tuples(st.integers(0, 3), PATHS, st.sampled_from(["insert", "insert", "withdraw", "expire", "forget"]))
    ),
    st.lists(PATHS, max_size=5),
)
@settings(max_examples=100, deadline=None)
def test_depths_are_those_of_each_shadow(steps, asked):
    """Whatever is inserted, evicted, withdrawn, expired and forgotten, for any prompt."""
    holders = Holders()
    shadows = {f"r{n}": ShadowIndex(40, 12, name=f"r{n}", holders=holders) for n in range(4)}
    insertions = {}
    for now, (number, path, verb) in enumerate(steps):
        shadow, name = shadows[f"r{number}"], f"r{number}"
        if verb == "insert":
            insertions[name] = shadow.insert(key_of(path), float(now))
        elif verb == "withdraw" and name in insertions:
            shadow.withdraw(insertions[name])
        elif verb == "expire":
            shadow.expire(now - 3.0)
        elif verb == "forget":
            shadow.forget()
        for key in map(key_of, [*asked, path]):
            found = holders.depths(key)
            assert found == {name: held for name, one in shadows.items() if (held := one.num_held(key))}


def test_long_prompts_are_looked_up_by_strides():
    """Thousands of borders, a few of which end somebody's prefix."""
    holders = Holders()
    text = [b"%d" % number for number in range(3000)]
    for name, length in (("a", 3000), ("b", 1), ("c", 777), ("d", 2999)):
        ShadowIndex(1 << 20, 8000, name=name, holders=holders).insert(prefix_key("m", "s", text[:length]), 1.0)
    assert holders.depths(prefix_key("m", "s", text)) == {"a": 3000, "b": 1, "c": 777, "d": 2999}


def test_a_replica_that_leaves_gives_its_bit_back_clean():
    """The next one with that bit holds nothing."""
    holders = Holders()
    first = ShadowIndex(1000, 100, name="first", holders=holders)
    insertion = first.insert(key_of(["a", "bb"]), 1.0)
    first.leave()
    first.leave()
    second = ShadowIndex(1000, 100, name="second", holders=holders)
    assert (holders.depths(key_of(["a", "bb"])), len(holders)) == ({}, 0)
    second.insert(key_of(["a"]), 2.0)
    first.withdraw(insertion)
    assert holders.depths(key_of(["a", "bb"])) == {"second": 1}
    assert repr(holders) == "<Holders 1 borders, 1 replicas>"
