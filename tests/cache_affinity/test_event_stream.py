"""The order of batches: whatever is lost, late, doubled or restarted, what is applied is what the engine said."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cache_affinity.event_stream import (
    ANSWER_S,
    AUDIT_S,
    MAX_HELD,
    MAX_UNANSWERED,
    Apply,
    AskAgain,
    Clear,
    EventStream,
    Standing,
)
from cache_affinity.kv_events import AllCleared, BlocksRemoved, BlocksStored, KvBatch


def batch(number, *, generation="g1", events=None):
    """A batch that stores block `number`."""
    return KvBatch(number, (one_block(number),) if events is None else events, generation)


def one_block(number):
    return BlocksStored((number,), None, b"\0\0\0\0", 1)


def applied(actions):
    return [event for action in actions if isinstance(action, Apply) for event in action.events]


def asked(actions):
    return [action.sequence for action in actions if isinstance(action, AskAgain)]


def current(*, next_sequence=0, generation="g1"):
    """A stream that has just joined an engine that has said nothing it missed."""
    stream = EventStream(can_ask=True)
    stream.begin(0.0)
    for number in range(next_sequence):
        stream.again(batch(number, generation=generation), 0.0)
    stream.answered(0.0, generation=generation, next_sequence=next_sequence)
    assert stream.standing is Standing.COMPLETE
    return stream


def test_joining_asks_for_everything_and_is_complete_once_it_came():
    """The state before we came is in the first batches."""
    stream = EventStream(can_ask=True)
    actions = stream.begin(0.0)
    assert [type(action) for action in actions] == [Clear, AskAgain]
    assert asked(actions) == [0]
    assert stream.standing is Standing.UNKNOWN
    assert len(applied(stream.again(batch(0), 0.1) + stream.again(batch(1), 0.1))) == 2
    assert stream.answered(0.2, generation="g1", next_sequence=2) == []
    assert stream.standing is Standing.COMPLETE
    assert applied(stream.live(batch(2), 0.3)) == [one_block(2)]


def test_what_comes_live_while_an_answer_is_awaited_follows_it_once():
    """Subscribing and asking overlap: nothing is lost and nothing applied twice or out of order."""
    stream = EventStream(can_ask=True)
    stream.begin(0.0)
    assert stream.live(batch(1), 0.1) == []
    assert stream.live(batch(2), 0.1) == []
    seen = applied(stream.again(batch(0), 0.2) + stream.again(batch(1), 0.2))
    seen += applied(stream.answered(0.3, generation="g1", next_sequence=2))
    assert seen == [one_block(0), one_block(1), one_block(2)]


def test_a_gap_is_asked_for_and_filled_in_order():
    """P-KV: a lost batch may hold a removal."""
    stream = current(next_sequence=3)
    actions = stream.live(batch(5), 1.0)
    assert (asked(actions), applied(actions)) == ([3], [])
    seen = [event for number in (3, 4, 5) for event in applied(stream.again(batch(number), 1.1))]
    seen += applied(stream.answered(1.2, generation="g1", next_sequence=6))
    assert seen == [one_block(3), one_block(4), one_block(5)]
    assert (stream.standing, stream.counts.num_gaps, stream.counts.num_clears) == (Standing.COMPLETE, 1, 0)


def test_a_gap_that_cannot_be_filled_clears_and_is_partial():
    """The engine keeps 10,000 batches; beyond, what is known cannot be believed."""
    stream = current(next_sequence=3)
    stream.live(batch(90), 1.0)
    actions = stream.again(batch(50), 1.1)
    assert [type(action) for action in actions] == [Clear, Apply]
    for number in range(51, 90):
        stream.again(batch(number), 1.1)
    assert applied(stream.answered(1.2)) == [one_block(90)]
    assert stream.standing is Standing.PARTIAL


def test_a_snapshot_in_parts_makes_it_complete_again():
    """Our workers answer with what the cache holds, in as many parts as it takes, under the number it includes."""
    stream = current(next_sequence=3)
    stream.live(batch(90), 1.0)
    parts = [batch(88, events=(AllCleared(), one_block(1))), batch(88, events=(one_block(2),)), batch(89)]
    seen = [event for part in parts for event in applied(stream.again(part, 1.1))]
    seen += applied(stream.answered(1.2, generation="g1", next_sequence=90))
    assert seen == [AllCleared(), one_block(1), one_block(2), one_block(89), one_block(90)]
    assert stream.standing is Standing.COMPLETE


def test_a_snapshot_that_includes_only_the_first_batch_counts_whole():
    """Its number is the one that is awaited anyway."""
    stream = EventStream(can_ask=True)
    stream.begin(0.0)
    parts = [batch(0, events=(AllCleared(),)), batch(0, events=(one_block(7),))]
    seen = [event for part in parts for event in applied(stream.again(part, 0.1))]
    assert seen == [AllCleared(), one_block(7)]


def test_another_generation_is_another_process():
    """A restarted worker: no stale hit after its first batch."""
    stream = current(next_sequence=3)
    actions = stream.live(batch(3, generation="g2"), 1.0)
    assert isinstance(actions[0], Clear)
    assert asked(actions) == [0]
    assert stream.standing is Standing.UNKNOWN
    seen = [event for number in range(4) for event in applied(stream.again(batch(number, generation="g2"), 1.1))]
    seen += applied(stream.answered(1.2, generation="g2", next_sequence=4))
    assert seen == [one_block(number) for number in range(4)]
    assert (stream.standing, stream.generation, stream.counts.num_restarts) == (Standing.COMPLETE, "g2", 1)


def test_numbers_that_begin_anew_are_another_process():
    """VLLM names no generation."""
    stream = current(generation=None)
    for number in range(5):
        stream.live(batch(number, generation=None), 1.0)
    actions = stream.live(batch(2, generation=None), 2.0)
    assert isinstance(actions[0], Clear)
    assert asked(actions) == [0]


def test_a_restart_noticed_in_an_answer_starts_anew():
    """Asked because of a silence, the engine turns out to be another."""
    stream = current(next_sequence=3)
    assert asked(stream.tick(AUDIT_S + 1)) == [3]
    actions = stream.again(batch(3, generation="g2"), AUDIT_S + 1)
    assert isinstance(actions[0], Clear)
    assert asked(actions) == [0]
    stream = current(next_sequence=3)
    stream.tick(AUDIT_S + 1)
    assert asked(stream.answered(AUDIT_S + 1, generation="g2", next_sequence=1)) == [0]
    stream = current(next_sequence=3, generation=None)
    stream.tick(AUDIT_S + 1)
    assert asked(stream.answered(AUDIT_S + 1, next_sequence=1)) == [0]


def test_a_silence_is_looked_into_and_finds_a_lost_last_batch():
    """What nobody follows shows no gap."""
    stream = current(next_sequence=3)
    assert stream.tick(AUDIT_S) == []
    assert asked(stream.tick(AUDIT_S + 0.1)) == [3]
    assert stream.is_waiting
    assert applied(stream.again(batch(3), AUDIT_S + 0.2)) == [one_block(3)]
    stream.answered(AUDIT_S + 0.2, generation="g1", next_sequence=4)
    assert (stream.standing, stream.is_waiting) == (Standing.COMPLETE, False)


def test_no_answer_at_all_clears_what_is_known():
    """A killed worker publishes nothing and answers nobody."""
    stream, now = current(next_sequence=3), AUDIT_S + 1
    assert asked(stream.tick(now)) == [3]
    cleared = []
    for _ in range(MAX_UNANSWERED):
        now += ANSWER_S + 0.1
        cleared += [action for action in stream.tick(now) if isinstance(action, Clear)]
    assert (len(cleared), stream.standing) == (1, Standing.UNKNOWN)
    assert asked(stream.tick(now + ANSWER_S + 0.1)) == [0], "it goes on asking"


def test_an_engine_that_speaks_and_never_answers_is_followed_partly():
    """A wrong replay address must not cost all of the index."""
    stream, now = EventStream(can_ask=True), 0.0
    stream.begin(now)
    seen = []
    for number in range(10):
        now += 1.0
        seen += applied(stream.live(batch(number + 5), now)) + applied(stream.tick(now))
    assert stream.standing is Standing.PARTIAL
    assert seen == [one_block(number + 5) for number in range(10)]


def test_without_a_replay_socket_a_gap_clears():
    """VLLM with none configured: what is known is true, but may not be all."""
    stream = EventStream(can_ask=False)
    assert asked(stream.begin(0.0)) == []
    assert stream.standing is Standing.PARTIAL
    assert applied(stream.live(batch(7, generation=None), 0.1)) == [one_block(7)]
    actions = stream.live(batch(9, generation=None), 0.2)
    assert [type(action) for action in actions] == [Clear, Apply]
    restarted = stream.live(batch(0, generation=None), 0.3)
    assert [type(action) for action in restarted] == [Clear, Apply]
    assert stream.tick(100.0) == []
    stream.live(batch(1, events=(AllCleared(),), generation=None), 0.4)
    assert stream.standing is Standing.COMPLETE


def test_a_batch_that_cannot_be_read_clears():
    """It may have told of removals."""
    stream = current(next_sequence=3)
    assert [type(action) for action in stream.broken(3, 1.0)] == [Clear]
    assert stream.standing is Standing.PARTIAL
    assert applied(stream.live(batch(4), 1.1)) == [one_block(4)]
    assert stream.broken(1, 1.2) == [], "an old one says nothing new"


def test_an_answer_nobody_waits_for_is_dropped():
    """A socket may deliver late."""
    stream = current(next_sequence=3)
    assert stream.again(batch(3), 1.0) == []
    assert stream.answered(1.0, generation="g9") == []


def test_an_engine_that_tells_nothing_of_what_it_held_is_partial():
    """It says that it published batches and gives none."""
    stream = EventStream(can_ask=True)
    stream.begin(0.0)
    stream.answered(0.1, generation="g1", next_sequence=9)
    assert stream.standing is Standing.PARTIAL


def test_what_is_held_back_is_bounded():
    """While an answer does not come, memory stays within bounds, and what was dropped is asked for."""
    stream = EventStream(can_ask=True)
    stream.begin(0.0)
    for number in range(MAX_HELD + 2):
        stream.live(batch(number + 1), 0.1)
    assert len(stream._held) == 2
    actions = stream.again(batch(0), 0.2) + stream.answered(0.3, generation="g1", next_sequence=1)
    assert asked(actions) == [1]


def test_its_repr_tells_where_it_stands():
    """For logs."""
    assert "complete next=3 held=0" in repr(current(next_sequence=3))


class Publisher:
    """An engine's side: publishes, keeps the last few, answers from any number; may start anew."""

    def __init__(self, keep, *, speaks_generations):
        self.keep = keep
        self.speaks = speaks_generations
        self.life = 0
        self.restart()

    def restart(self):
        self.life += 1
        self.held = set()
        self.kept = []
        self.next = 0
        self.publish((AllCleared(),))

    @property
    def generation(self):
        return f"g{self.life}" if self.speaks else None

    def publish(self, events):
        for event in events:
            match event:
                case BlocksStored(hashes):
                    self.held |= set(hashes)
                case BlocksRemoved(hashes):
                    self.held -= set(hashes)
                case AllCleared():
                    self.held.clear()
        made = KvBatch(self.next, tuple(events), self.generation)
        self.next += 1
        self.kept = [*self.kept, made][-self.keep :]
        return made

    def answer(self, wanted):
        batches = []
        if wanted < self.kept[0].sequence:
            if self.speaks:
                parts = [(AllCleared(),), *((one_block(block),) for block in sorted(self.held))]
                batches = [KvBatch(self.next - 1, part, self.generation) for part in parts]
                wanted = self.next
            else:
                wanted = 0
        return batches + [one for one in self.kept if one.sequence >= wanted]


class Reader:
    """Our side: does what the stream says, to a set."""

    def __init__(self, publisher):
        self.publisher = publisher
        self.stream = EventStream(can_ask=True)
        self.held = set()
        self.now = 0.0
        self.asking = None
        self.act(self.stream.begin(self.now))

    def act(self, actions):
        for action in actions:
            match action:
                case Clear():
                    self.held.clear()
                case AskAgain(sequence):
                    self.asking = sequence
                case Apply(events):
                    for event in events:
                        match event:
                            case BlocksStored(hashes):
                                self.held |= set(hashes)
                            case BlocksRemoved(hashes):
                                self.held -= set(hashes)
                            case AllCleared():
                                self.held.clear()

    def answer(self):
        """What was asked is answered whole, unless another asking takes its place in between."""
        wanted, publisher = self.asking, self.publisher
        if wanted is None:
            return
        self.asking = None
        for one in publisher.answer(wanted):
            self.act(self.stream.again(one, self.now))
            if self.asking is not None:
                return
        ends = {"generation": publisher.generation, "next_sequence": publisher.next} if publisher.speaks else {}
        self.act(self.stream.answered(self.now, **ends))

    def tick(self, seconds):
        self.now += seconds
        self.act(self.stream.tick(self.now))


EVENTS = st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=1, max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), EVENTS, st.booleans()),
        st.just(("restart",)),
        st.just(("answer",)),
        st.just(("tick",)),
        st.just(("clear",)),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=150)
@given(STEPS, st.integers(2, 8), st.booleans())
def test_after_any_losses_and_restarts_nothing_is_believed_that_is_not_held(steps, keep, speaks):
    """Batches get lost, answers come late, the engine restarts: when all is quiet the two sides agree.

    An engine without generations and snapshots may leave us knowing less, never more.
    """
    publisher = Publisher(keep, speaks_generations=speaks)
    reader = Reader(publisher)
    reader.answer()
    for step in steps:
        match step:
            case ("publish", events, is_lost):
                made = publisher.publish([one_block(n) if stored else BlocksRemoved((n,)) for stored, n in events])
                if not is_lost:
                    reader.act(reader.stream.live(made, reader.now))
            case ("clear",):
                reader.act(reader.stream.live(publisher.publish([AllCleared()]), reader.now))
            case ("restart",) if speaks:
                publisher.restart()
            case ("answer",):
                reader.answer()
            case ("tick",):
                reader.tick(1.0)
    for _ in range(12):  # quiet: silences are looked into, and every asking answered
        reader.tick(AUDIT_S + 0.5)
        reader.answer()
    if speaks:
        assert reader.held == publisher.held
        assert reader.stream.standing is Standing.COMPLETE
    assert reader.held <= publisher.held
