"""The exact index: what it says is what the events said, however they come; and it stays within its bound."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cache_affinity.exact import NO_HITS, ExactIndex
from cache_affinity.kv_events import AllCleared, BlocksRemoved, BlocksStored, TokenChain, pack

SIZE = 4


def stored(tokens, *, parent=None, first=0, size=SIZE, salt="", is_host=False, prefix="", adapter=""):
    """An event of the blocks of `tokens`, whose engine hashes are told from the tokens and the salt."""
    hashes = tuple(engine_hash(prefix + salt, tokens[: end * size]) for end in range(1, len(tokens) // size + 1))
    return BlocksStored(
        hashes[first:],
        hashes[first - 1] if first else parent,
        pack(tokens[first * size : len(hashes) * size]),
        size,
        salt=salt,
        adapter=adapter,
        is_host=is_host,
    )


def engine_hash(salt, tokens):
    return hash((salt, tuple(tokens))) & ((1 << 60) - 1)


def known(*replicas):
    index = ExactIndex()
    for replica in replicas:
        index.mark(replica, is_known=True)
    return index


def prompt(num_blocks, start=0):
    return [start + place for place in range(num_blocks * SIZE)]


def hits(index, tokens, salt="", adapter=""):
    return index.hits(TokenChain(pack([*tokens, 9]), salt=salt, adapter=adapter)).tokens


def test_a_prompt_hits_as_far_as_each_replica_holds_it():
    """One look-up answers for all: whole, part and nothing."""
    index = known("a", "b", "c")
    tokens = prompt(6)
    index.apply("a", [stored(tokens)])
    index.apply("b", [stored(tokens[: 2 * SIZE])])
    assert hits(index, tokens) == {"a": 24, "b": 8, "c": 0}
    assert hits(index, prompt(6, start=1000)) == {"a": 0, "b": 0, "c": 0}


def test_a_replica_that_is_not_known_is_not_spoken_of():
    """Its events may be old; the shadow speaks for it."""
    index = ExactIndex()
    index.apply("a", [stored(prompt(2))])
    assert index.hits(TokenChain(pack(prompt(3)))) is NO_HITS
    index.mark("a", is_known=True, is_partial=True)
    found = index.hits(TokenChain(pack(prompt(3))))
    assert (found.tokens, found.partial) == ({"a": 8}, frozenset({"a"}))


def test_blocks_behind_a_parent_continue_its_chain():
    """Events tell a conversation piece by piece."""
    index = known("a")
    tokens = prompt(5)
    index.apply("a", [stored(tokens[: 2 * SIZE]), stored(tokens, first=2)])
    assert hits(index, tokens) == {"a": 20}


def test_a_hole_ends_the_hit():
    """What lies behind an evicted block cannot be used."""
    index = known("a")
    tokens = prompt(5)
    event = stored(tokens)
    index.apply("a", [event, BlocksRemoved((event.hashes[2],))])
    assert hits(index, tokens) == {"a": 8}
    index.check_integrity()


def test_salts_and_adapters_share_nothing():
    """P10: a tenant's blocks are invisible to who has another salt."""
    index = known("a")
    index.apply("a", [stored(prompt(3), salt="salt/one")])
    assert hits(index, prompt(3)) == {"a": 0}
    assert hits(index, prompt(3), salt="salt/two") == {"a": 0}
    assert hits(index, prompt(3), salt="salt/one") == {"a": 12}
    assert hits(index, prompt(3), salt="salt/one", adapter="lora") == {"a": 0}


def test_replicas_with_other_block_sizes_are_asked_in_theirs():
    """The block size comes from the events."""
    index = known("a", "b")
    tokens = prompt(4)
    index.apply("a", [stored(tokens)])
    index.apply("b", [stored(tokens, size=8)])
    assert hits(index, tokens) == {"a": 16, "b": 16}
    assert hits(index, tokens[:12]) == {"a": 12, "b": 8}


def test_a_block_in_the_hosts_memory_counts_less_and_in_both_counts_whole():
    """Copying back costs less than computing and more than nothing."""
    index = ExactIndex(host_credit=0.5)
    index.mark("a", is_known=True)
    index.mark("b", is_known=True)
    tokens = prompt(4)
    index.apply("a", [stored(tokens), stored(tokens, is_host=True)])
    index.apply("b", [stored(tokens[: 2 * SIZE]), stored(tokens, is_host=True)])
    assert hits(index, tokens) == {"a": 16, "b": 12}
    index.apply("a", [BlocksRemoved(stored(tokens).hashes[1:])])
    assert hits(index, tokens) == {"a": 4 + 6, "b": 12}
    index.check_integrity()


def test_a_child_in_the_host_finds_its_parent_on_the_device():
    """A tier may hold only the tail."""
    index = ExactIndex(host_credit=1.0)
    index.mark("a", is_known=True)
    tokens = prompt(4)
    index.apply("a", [stored(tokens[: 2 * SIZE]), stored(tokens, first=2, is_host=True)])
    assert hits(index, tokens) == {"a": 16}


def test_stored_again_changes_nothing():
    """vLLM tells a reused prefix once more."""
    index = known("a")
    assert index.apply("a", [stored(prompt(3)), stored(prompt(3))]) == 3
    assert len(index) == 3
    index.apply("a", [BlocksRemoved(stored(prompt(3)).hashes)])
    assert (len(index), hits(index, prompt(3))) == (0, {"a": 0})


def test_an_orphan_is_counted_and_left_out():
    """A parent that was never told cannot be placed: colder, never wrong."""
    index = known("a")
    index.apply("a", [stored(prompt(4), first=2)])
    assert (len(index), index.statistics().num_orphans) == (0, 2)


def test_removing_what_was_never_told_is_harmless():
    """Joining in the middle, removals come of blocks from before."""
    index = known("a")
    assert index.apply("a", [BlocksRemoved((1, 2, 3)), BlocksRemoved((1,), is_host=True)]) == 0
    index.check_integrity()


def test_all_cleared_empties_one_replica_alone():
    """The other's blocks stay."""
    index = known("a", "b")
    for replica in "ab":
        index.apply(replica, [stored(prompt(3))])
    index.apply("a", [AllCleared()])
    assert hits(index, prompt(3)) == {"a": 0, "b": 12}
    index.check_integrity()


def test_a_forgotten_replica_gives_its_bit_to_the_next():
    """Bits are few; nobody inherits blocks with one."""
    index = known("a", "b")
    index.apply("a", [stored(prompt(3))])
    index.forget("a")
    index.forget("never known")
    assert hits(index, prompt(3)) == {"b": 0}
    index.mark("c", is_known=True)
    assert hits(index, prompt(3)) == {"b": 0, "c": 0}
    assert index.clear("a") == 0
    index.check_integrity()


def test_the_bound_drops_the_oldest_of_the_fullest_and_makes_it_partial():
    """P22: memory is bounded; what was dropped only makes a replica look colder."""
    index = ExactIndex(max_blocks=64)
    for replica in ("big", "small"):
        index.mark(replica, is_known=True)
    index.apply("small", [stored(prompt(4))])
    for number in range(40):
        index.apply("big", [stored(prompt(4, start=100 * (number + 1)))])
    statistics = index.statistics()
    assert len(index) <= 64
    assert statistics.num_dropped == 4 + 160 - len(index)
    assert hits(index, prompt(4)) == {"big": 0, "small": 16}
    assert hits(index, prompt(4, start=100))["big"] == 0
    assert hits(index, prompt(4, start=4000))["big"] == 16
    assert index.hits(TokenChain(pack(prompt(1)))).partial == {"big"}
    index.check_integrity()


def test_host_blocks_are_dropped_first():
    """They count less."""
    index = ExactIndex(max_blocks=8, host_credit=1.0)
    index.mark("a", is_known=True)
    index.apply("a", [stored(prompt(6), is_host=True), stored(prompt(6))])
    assert len(index.names_held("a")) == 6
    assert index.num_held("a") == 8


def test_sixty_five_replicas_have_a_bit_each():
    """A mask is no machine word."""
    index = known(*(f"r{number}" for number in range(65)))
    index.apply("r64", [stored(prompt(2))])
    found = hits(index, prompt(2))
    assert found["r64"] == 8
    assert sum(found.values()) == 8


def test_two_blocks_that_look_alike_are_gone_with_the_first():
    """An old engine may not tell what sets two blocks apart; the index then claims less, never more."""
    index = known("a")
    index.apply("a", [stored(prompt(2)), stored(prompt(2), prefix="twin")])
    index.check_integrity()
    index.apply("a", [BlocksRemoved(stored(prompt(2)).hashes)])
    assert hits(index, prompt(2)) == {"a": 0}
    index.check_integrity()
    index.apply("a", [BlocksRemoved(stored(prompt(2), prefix="twin").hashes)])
    assert len(index) == 0


def test_its_repr_tells_its_sizes():
    """What a person sees in a log."""
    index = known("a")
    index.apply("a", [stored(prompt(2))])
    assert repr(index) == "<ExactIndex 2 blocks, 2 names, 1 replicas>"


class Engine:
    """What a replica really holds: paths of blocks by medium, evicted leaf first or not."""

    def __init__(self):
        self.held = {False: set(), True: set()}


class IndexAgainstEngines(RuleBasedStateMachine):
    """Random prompts come and go at three replicas; the index must say what a plain search says."""

    def __init__(self):
        super().__init__()
        self.index = known("r0", "r1", "r2")
        self.index._host_credit = 1.0
        self.engines = {f"r{number}": Engine() for number in range(3)}

    prompts = st.lists(st.integers(0, 1), min_size=1, max_size=5)
    replicas = st.sampled_from(["r0", "r1", "r2"])
    salts = st.sampled_from(["", "salt/a"])

    @staticmethod
    def tokens(kinds):
        return [kind * 10 + place for kind in kinds for place in range(SIZE)]

    @rule(replica=replicas, kinds=prompts, salt=salts, is_host=st.booleans())
    def store(self, replica, kinds, salt, is_host):
        tokens = self.tokens(kinds)
        self.index.apply(replica, [stored(tokens, salt=salt, is_host=is_host)])
        for end in range(1, len(kinds) + 1):
            self.engines[replica].held[is_host].add((salt, tuple(tokens[: end * SIZE])))

    @rule(replica=replicas, kinds=prompts, salt=salts, is_host=st.booleans())
    def remove(self, replica, kinds, salt, is_host):
        tokens = tuple(self.tokens(kinds))
        self.index.apply(replica, [BlocksRemoved((engine_hash(salt, tokens),), is_host)])
        self.engines[replica].held[is_host].discard((salt, tokens))

    @rule(replica=replicas)
    def clear(self, replica):
        self.index.apply(replica, [AllCleared()])
        self.engines[replica] = Engine()

    @rule(replica=replicas)
    def leave_and_come_back(self, replica):
        self.index.forget(replica)
        self.index.mark(replica, is_known=True)
        self.engines[replica] = Engine()

    @rule(kinds=prompts, salt=salts)
    def ask(self, kinds, salt):
        tokens = self.tokens(kinds)
        found = hits(self.index, tokens, salt=salt)
        for replica, engine in self.engines.items():
            held = engine.held[False] | engine.held[True]
            depth = 0
            while depth < len(kinds) and (salt, tuple(tokens[: (depth + 1) * SIZE])) in held:
                depth += 1
            assert found[replica] == depth * SIZE

    @invariant()
    def sound(self):
        self.index.check_integrity()


IndexAgainstEngines.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestIndexAgainstEngines = IndexAgainstEngines.TestCase


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.booleans()), max_size=60), st.integers(1, 20))
def test_no_history_breaks_the_bound(history, bound):
    """Whatever comes, at most `max_blocks` are held and masks and tables agree."""
    index = ExactIndex(max_blocks=bound)
    for replica, number, is_stored in history:
        event = stored(prompt(3, start=number * 50))
        index.apply(f"r{replica}", [event if is_stored else BlocksRemoved(event.hashes)])
        assert len(index) <= bound
        index.check_integrity()
