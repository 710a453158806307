"""The publisher: in order, kept for who missed some, told anew to who missed more, never in the engine's way."""

import contextlib
import threading

import pytest
import zmq

from cache_affinity.kv_events import AllCleared, fold
from engines.kv_event_wire import End
from engines.worker.kv_events import CannotPublish, KvEventPublisher, KvEventSettings
from tests.engines.worker.kv_reader import Cache, Reader, block, held_after, name
from tests.engines.worker.processes import PATIENCE_S, until


@pytest.fixture
def publish():
    """A function that makes a started publisher of a cache; all are stopped at the end."""
    with contextlib.ExitStack() as stack:

        def make(cache, **changes):
            publisher = cache.publisher = KvEventPublisher(KvEventSettings(**changes), cache.snapshot, "life-1")
            publisher.start()
            stack.callback(publisher.stop)
            return publisher

        yield make


def folded(*numbers):
    return {fold(name(number)) for number in numbers}


def test_everything_comes_in_order_behind_a_first_batch_that_clears(publish):
    """Whatever a reader believed of an earlier process is void."""
    cache = Cache()
    publisher = publish(cache)
    for number in range(50):
        cache.store(number)
    cache.remove(3, 4)
    until(lambda: publisher.counts().num_blocks == 52)
    with Reader(publisher) as reader:
        batches, end = reader.again(0)
    assert batches[0].events == (AllCleared(),)
    assert [batch.sequence for batch in batches] == list(range(len(batches)))
    assert {batch.generation for batch in batches} == {"life-1"}
    assert held_after(batches) == folded(*cache.held)
    assert end == End("life-1", len(batches))


def test_a_subscriber_gets_each_batch_as_it_comes(publish):
    """The stream itself."""
    cache = Cache()
    with Reader(publish(cache)) as reader:
        reader.joined(cache)
        cache.store(1)
        first = reader.next()
        cache.remove(1)
        second = reader.next()
    assert (held_after([first]), held_after([first, second])) == (folded(1), set())
    assert second.sequence == first.sequence + 1


def test_whoever_asks_gets_what_came_since(publish):
    """VLLM's replay: from a number on, that one included; nothing but the end when there is nothing."""
    cache = Cache()
    publisher = publish(cache)
    for number in range(3):
        cache.store(number)
        until(lambda number=number: publisher.counts().num_blocks == number + 1)
    with Reader(publisher) as reader:
        batches, _ = reader.again(2)
        assert [batch.sequence for batch in batches] == [2, 3]
        assert reader.again(4) == ([], End("life-1", 4))
        assert reader.again(1000) == ([], End("life-1", 4))


def test_batches_that_are_no_longer_kept_are_made_up_for_by_a_snapshot(publish):
    """It bears the number of the last batch it includes, and begins by clearing."""
    cache = Cache()
    publisher = publish(cache, max_batches=4)
    for number in range(20):
        cache.store(number)
        until(lambda number=number: publisher.counts().num_blocks == number + 1)
    with Reader(publisher) as reader:
        batches, end = reader.again(0)
        assert {batch.sequence for batch in batches} == {20}
        assert batches[0].is_snapshot
        assert held_after(batches) == folded(*range(20))
        cache.store(77)
        until(lambda: publisher.counts().num_blocks == 21)
        batches, end = reader.again(3)
        assert held_after(batches) == folded(*range(20), 77)
        assert (batches[-1].sequence, end) == (21, End("life-1", 22))
    assert publisher.counts().num_snapshots == 1, "a young one answers again, with what came since"


def test_a_large_snapshot_comes_in_parts_under_one_number(publish):
    """No message is larger than some 1,000 blocks."""
    cache = Cache()
    cache.held = {number: block(number * 1000, num=500) for number in range(10)}
    publisher = publish(cache, max_batches=1)
    cache.store(10**7)
    until(lambda: publisher.counts().num_blocks == 1)
    with Reader(publisher) as reader:
        batches, _ = reader.again(0)
    assert len(batches) > 3
    assert [batch.is_snapshot for batch in batches] == [True] + [False] * (len(batches) - 1)
    assert len(held_after(batches)) == 5001


def test_what_is_kept_is_bounded_in_bytes(publish):
    """Long prompts make large batches."""
    cache = Cache()
    publisher = publish(cache, max_bytes=10_000)
    for number in range(50):
        cache.store(*range(number * 100, number * 100 + 20))
        until(lambda number=number: publisher.counts().num_blocks == 20 * (number + 1))
    assert 1 < len(publisher._kept) < 50
    assert publisher._kept_bytes <= 10_000
    assert publisher._kept_bytes == sum(len(payload) for _, payload in publisher._kept)


def test_a_full_queue_is_told_anew_and_the_engine_never_waits(publish):
    """The publisher's thread is held up; the engine goes on, and readers end with what the cache holds."""
    cache, gate, was_opened = Cache(), threading.Event(), []
    publisher = publish(cache, max_queued=100)
    snapshot = cache.snapshot

    def slow():
        was_opened.append(gate.wait(PATIENCE_S))
        return snapshot()

    publisher._snapshot = slow
    for number in range(20_000):
        cache.store(number)
        if number % 3 == 0:
            cache.remove(number)
    gate.set()  # who waited for the publisher would not have come here before its patience ended
    until(lambda: publisher.counts().num_overflows and not publisher._is_lossy and not publisher._queue)
    assert was_opened
    assert all(was_opened)
    cache.store(99_999_999)
    until(lambda: not publisher._queue)
    with Reader(publisher) as reader:
        until(lambda: held_after(reader.again(0)[0]) == folded(*cache.held))


def test_events_larger_than_the_queue_are_taken_when_it_is_empty(publish):
    """A whole cache told anew by the engine itself."""
    cache = Cache()
    publisher = publish(cache, max_queued=10)
    publisher.offer(tuple(block(number) for number in range(50)))
    until(lambda: publisher.counts().num_blocks == 50)
    assert publisher.counts().num_overflows == 0


def test_nothing_offered_publishes_nothing(publish):
    """A step that changed nothing."""
    cache = Cache()
    publisher = publish(cache)
    publisher.offer(())
    cache.store(1)
    until(lambda: publisher.counts().num_blocks == 1)
    assert publisher.counts().next_sequence == 2


def test_an_engine_in_a_long_step_leaves_an_asking_unanswered(publish):
    """The reader asks again; the stream goes on."""
    cache = Cache()
    cache.failures = [TimeoutError()]
    publisher = publish(cache, max_batches=1)
    cache.store(1)
    cache.store(2)
    until(lambda: publisher.counts().num_blocks == 2)
    with Reader(publisher) as reader:
        asking = reader.ask(b"", bytes(8))
        until(lambda: publisher.counts().num_answers == 1)
        assert not asking.poll(50)
        assert held_after(reader.again(0)[0]) == folded(1, 2)


def test_a_failing_snapshot_is_tried_again(publish, monkeypatch):
    """Events were lost: until the cache could be told anew the stream stays quiet rather than wrong."""
    monkeypatch.setattr("engines.worker.kv_events._RETRY_MS", 10)
    cache = Cache()
    publisher = publish(cache)
    cache.failures = [ValueError("broken"), TimeoutError()]
    cache.held = {5: block(5)}
    publisher._is_lossy = True
    publisher._wake()
    until(lambda: not publisher._is_lossy)
    with Reader(publisher) as reader:
        assert held_after(reader.again(0)[0]) == folded(5)


def test_who_left_is_answered_no_further(publish, monkeypatch):
    """Or who asks next, such as the same reader again, waits for the end of an answer to nobody."""
    cache = Cache()
    publisher = publish(cache)
    for number in range(100):
        cache.store(number)
        until(lambda: not publisher._queue)
    sent, reply = [], publisher._reply
    monkeypatch.setattr(publisher, "_reply", lambda *parts: sent.append(parts[0]) or reply(*parts))
    publisher._answer(b"left", 0)
    assert sent == [b"left"]
    with Reader(publisher) as reader:
        assert len(reader.again(0)[0]) == len(sent) - 2


@pytest.mark.parametrize("frames", [(b"",), (b"", b"123"), (b"", b"x" * 9), (b"a", b"b", b"c")])
def test_nonsense_on_the_replay_socket_is_dropped(publish, frames):
    """Whoever may connect may send anything."""
    cache = Cache()
    publisher = publish(cache)
    with Reader(publisher) as reader:
        reader.ask(*frames)
        assert len(reader.again(0)[0]) == 1


def test_a_subscriber_that_does_not_read_holds_up_nobody(publish):
    """It loses batches, which it notices; the others get theirs."""
    cache = Cache()
    publisher = publish(cache, max_unsent=5, max_queued=10**6)
    with Reader(publisher, max_unread=5) as idle, Reader(publisher) as reader:
        idle.joined(cache)
        reader.joined(cache)
        for number in range(5000):
            cache.store(number, *range(10_000, 10_030))
        until(lambda: not publisher._queue)
        until(lambda: held_after(reader.again(0)[0]) == folded(*cache.held))


def test_names_may_be_numbers(publish):
    """Some of vLLM's readers want them so; the index does not care."""
    cache = Cache()
    publisher = publish(cache, has_int_hashes=True)
    cache.store(1, 2)
    until(lambda: publisher.counts().num_blocks == 2)
    with Reader(publisher) as reader:
        assert held_after(reader.again(0)[0]) == folded(1, 2)


def test_a_taken_or_impossible_endpoint_is_one_sentence(publish):
    """And nothing stays open behind it."""
    publisher = publish(Cache())
    with pytest.raises(CannotPublish, match="cannot be published at"):
        KvEventPublisher(KvEventSettings(endpoint=publisher.endpoint), tuple, "x")
    with pytest.raises(CannotPublish, match="cannot be published at"):
        KvEventPublisher(KvEventSettings(replay_endpoint="nonsense"), tuple, "x")


def test_free_ports_are_named_and_differ(publish):
    """Two workers of one machine need no configuration."""
    one, two = publish(Cache()), publish(Cache(), endpoint="tcp://127.0.0.1:0")
    assert len({one.endpoint, one.replay_endpoint, two.endpoint, two.replay_endpoint}) == 4
    assert all(endpoint.startswith("tcp://127.0.0.1:") for endpoint in (one.endpoint, two.endpoint))
    assert one.endpoint in repr(one)


def test_an_ipc_endpoint_works(publish, tmp_path):
    """On one machine no port is needed."""
    cache = Cache()
    publisher = publish(cache, endpoint=f"ipc://{tmp_path}/kv", replay_endpoint=f"ipc://{tmp_path}/replay")
    cache.store(4)
    until(lambda: publisher.counts().num_blocks == 1)
    with Reader(publisher) as reader:
        assert held_after(reader.again(0)[0]) == folded(4)


def test_stopping_sends_what_is_queued_ends_the_thread_and_may_be_repeated():
    """Finished, twice, and never started."""
    cache = Cache()
    publisher = cache.publisher = KvEventPublisher(KvEventSettings(), cache.snapshot, "life-1")
    publisher.start()
    cache.store(1)
    publisher.stop()
    publisher.stop()
    assert not publisher._thread.is_alive()
    assert publisher.counts().num_blocks == 1
    cache.store(2)  # an engine's last events come to nobody
    never = KvEventPublisher(KvEventSettings(), tuple, "life-2")
    never.stop()
    with pytest.raises(zmq.ZMQError):
        never._stream.send(b"")
