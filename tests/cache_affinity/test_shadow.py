"""The predicted cache of one replica: true sizes, bounds, no holes."""

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cache_affinity.prefix import PrefixKey, prefix_key
from cache_affinity.shadow import Insertion, ShadowIndex


def key_of(*segments: str, salt: str = "alder") -> PrefixKey:
    """The key of a few short messages."""
    return prefix_key("m", salt, [segment.encode() for segment in segments])


def naive_hit(key: PrefixKey, held: set[int]) -> int:
    """The longest leading run, border by border."""
    size = 0
    for border, end in zip(key.hashes, key.sizes, strict=True):
        if border not in held:
            break
        size = end
    return size


def test_the_next_turn_hits_the_whole_turn_before():
    """The reason affinity exists."""
    shadow = ShadowIndex(1000, 100)
    shadow.insert(key_of("system", "hello"), now=1.0)
    assert shadow.hit_bytes(key_of("system", "hello", "answer", "and now?")) == len("systemhello")
    assert shadow.hit_bytes(key_of("system", "another")) == len("system")
    assert shadow.hit_bytes(key_of("other", "hello")) == 0


def test_another_tenant_hits_nothing():
    """The same text under another salt is another prompt."""
    shadow = ShadowIndex(1000, 100)
    shadow.insert(key_of("system", "hello"), now=1.0)
    assert shadow.hit_bytes(key_of("system", "hello", salt="birch")) == 0


def test_shared_heads_are_counted_once():
    """Bytes are those the engine keeps, and it keeps a shared prefix once."""
    shadow = ShadowIndex(1000, 100)
    shadow.insert(key_of("system", "one"), now=1.0)
    shadow.insert(key_of("system", "three"), now=2.0)
    assert shadow.held_bytes == len("systemonethree")
    assert shadow.statistics().num_nodes == 3


def test_eviction_takes_the_oldest_and_its_tail_first():
    """Like an engine's block cache: leaves go before what they hang on."""
    shadow = ShadowIndex(12, 100)
    shadow.insert(key_of("aaaa", "bbbb"), now=1.0)
    shadow.insert(key_of("cccc", "dddd"), now=2.0)
    assert shadow.hit_bytes(key_of("aaaa", "bbbb")) == 4
    assert shadow.hit_bytes(key_of("cccc", "dddd")) == 8
    assert shadow.statistics().num_evicted == 1


def test_a_withdrawn_prompt_leaves_what_others_share_and_no_holes():
    """D12: what was there before stays, and so does what a sibling was given since."""
    shadow = ShadowIndex(1000, 100)
    shadow.insert(key_of("a"), now=1.0)
    mine = shadow.insert(key_of("a", "b", "c", "d"), now=1.0)
    shadow.insert(key_of("a", "b", "x"), now=1.0)
    assert shadow.withdraw(mine) == 2
    assert shadow.hit_bytes(key_of("a", "b", "c", "d")) == 2
    assert shadow.hit_bytes(key_of("a", "b", "x")) == 3
    assert (len(shadow), shadow.held_bytes) == (3, 3)
    assert shadow.withdraw(mine) == 0


def test_a_touched_prompt_outlives_an_untouched_one():
    """Least recently routed, not first routed."""
    shadow = ShadowIndex(8, 100)
    shadow.insert(key_of("aaaa"), now=1.0)
    shadow.insert(key_of("bbbb"), now=2.0)
    shadow.insert(key_of("aaaa"), now=3.0)
    shadow.insert(key_of("cccc"), now=4.0)
    assert shadow.hit_bytes(key_of("aaaa")) == 4
    assert shadow.hit_bytes(key_of("bbbb")) == 0


def test_a_prompt_larger_than_the_cache_keeps_its_head():
    """The bound holds, and what is kept is still a usable prefix."""
    shadow = ShadowIndex(9, 100)
    shadow.insert(key_of("aaaa", "bbbb", "cccc"), now=1.0)
    assert shadow.hit_bytes(key_of("aaaa", "bbbb", "cccc")) == 8


def test_border_bound_holds_against_one_byte_messages():
    """Bytes alone would let tiny messages cost any amount of memory."""
    shadow = ShadowIndex(1_000_000, 10)
    shadow.insert(key_of(*"abcdefghijklmnopqrstuvwxyz"), now=1.0)
    assert len(shadow) == 10
    assert shadow.hit_bytes(key_of(*"abcdefghijklmnopqrstuvwxyz")) == 10


def test_forget_and_resize_and_expire_give_room_back():
    """A restarted, a shrunk and an idle replica hold less at once."""
    shadow = ShadowIndex(1000, 100)
    shadow.insert(key_of("aaaa", "bbbb"), now=1.0)
    shadow.insert(key_of("cccc"), now=5.0)
    assert shadow.expire(before=5.0) == 2
    assert (len(shadow), shadow.held_bytes) == (1, 4)
    shadow.insert(key_of("cccc", "dddd"), now=6.0)
    shadow.resize(4, 100)
    assert shadow.held_bytes == 4
    shadow.forget()
    assert (len(shadow), shadow.held_bytes, shadow.expire(before=99.0)) == (0, 0, 0)
    assert repr(shadow) == "<ShadowIndex 0 borders, 0 of 4 bytes>"


def test_an_empty_prompt_changes_nothing():
    """Nothing to hold, nothing to hit."""
    shadow = ShadowIndex(10, 10)
    shadow.insert(PrefixKey((), (), 0), now=1.0)
    assert shadow.hit_bytes(PrefixKey((), (), 0)) == len(shadow) == 0


@pytest.mark.parametrize("bounds", [(0, 1), (1, 0), (-1, 5)])
def test_an_index_without_room_is_refused(bounds):
    """A bound of zero is a mistake in the configuration, not a wish."""
    with pytest.raises(ValueError, match="room"):
        ShadowIndex(*bounds)


def test_p22_index_stays_bounded_under_a_flood_and_falls_after_idling():
    """P22: distinct prompts with shared heads, then one tenant's flood: nodes, bytes and memory plateau, then fall."""
    shadow = ShadowIndex(2_000_000, 4_000)
    tracemalloc.start()
    try:
        for number in range(3_000):
            tenant = "alder" if number >= 1_000 else f"tenant-{number % 7}"
            shadow.insert(prefix_key("m", tenant, [b"head" * 300, b"%d" % number * 700]), now=number / 10)
            assert len(shadow) <= 4_000
            assert shadow.held_bytes <= 2_000_000
            if number == 1_500:
                plateau = tracemalloc.get_traced_memory()[0]
        assert tracemalloc.get_traced_memory()[0] < plateau * 1.2 < 4_000 * 600
        shadow.expire(before=1e9)
        assert tracemalloc.get_traced_memory()[0] < plateau / 4
    finally:
        tracemalloc.stop()
    assert (len(shadow), shadow.held_bytes) == (0, 0)


class ShadowMachine(RuleBasedStateMachine):
    """Random prompts of a small tree, inserted, expired, resized and forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.shadow = ShadowIndex(60, 12)
        self.insertions: list[Insertion] = []
        self.now = 0.0
        self.keys: list[PrefixKey] = []

    @rule(path=st.lists(st.sampled_from(["a", "bb", "ccc", "dddddddd"]), min_size=1, max_size=6))
    def insert(self, path):
        """Route a prompt there."""
        self.now += 1.0
        key = key_of(*path)
        self.keys.append(key)
        self.insertions.append(self.shadow.insert(key, self.now))

    @rule(age=st.integers(0, 5))
    def expire(self, age):
        """Drop what is old."""
        self.shadow.expire(self.now - age)

    @rule(capacity=st.integers(1, 60), nodes=st.integers(1, 12))
    def resize(self, capacity, nodes):
        """Change the bounds."""
        self.shadow.resize(capacity, nodes)

    @rule()
    def forget(self):
        """Restart."""
        self.shadow.forget()

    @rule(number=st.integers(0, 30))
    def withdraw(self, number):
        """Any earlier prompt, also twice."""
        if self.insertions:
            self.shadow.withdraw(self.insertions[number % len(self.insertions)])

    @invariant()
    def halving_equals_walking_and_there_are_no_holes(self):
        """Every held border's parent is held, so the fast search is the true one."""
        held = set(self.shadow._held)
        for key in self.keys:
            assert self.shadow.hit_bytes(key) == naive_hit(key, held)
            num_held = sum(end <= self.shadow.hit_bytes(key) for end in key.sizes)
            assert {self.shadow.num_held(key, guess) for guess in range(9)} == {num_held}
            assert all(parent in held or child not in held for parent, child in pairwise(key.hashes))

    @invariant()
    def accounts_are_true(self):
        """Bytes equal the sum of what is held, within both bounds."""
        assert self.shadow.held_bytes == sum(part for part, *_ in self.shadow._held.values())
        assert self.shadow.held_bytes <= self.shadow.capacity_bytes
        assert len(self.shadow) <= self.shadow.max_nodes


TestShadowMachine = ShadowMachine.TestCase
TestShadowMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_only_what_was_routed_lately_is_fresh():
    """Heads are touched with every prompt behind them, so what is fresh comes first."""
    shadow = ShadowIndex(1000, 100)
    whole = key_of("system", "hello", "answer")
    shadow.insert(whole, now=1.0)
    shadow.insert(key_of("system", "hello"), now=5.0)
    assert shadow.num_fresh(whole, 3, since=0.0) == 3
    assert shadow.num_fresh(whole, 3, since=2.0) == 2
    assert shadow.num_fresh(whole, 1, since=2.0) == 1
    assert shadow.num_fresh(whole, 3, since=6.0) == 0
