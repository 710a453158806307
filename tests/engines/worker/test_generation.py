"""Open sequences of one request: finished, failed, abandoned, ended twice."""

import asyncio
import threading

import pytest

from engines.core.admission import Refusal, RefusalReason
from engines.core.sequence import FinishReason
from engines.worker.choice import Choice
from engines.worker.engine_link import EngineLink
from engines.worker.errors import ApiError, unavailable
from engines.worker.generation import Generation
from engines.worker.stops import StopMatcher
from tests.engines.worker.scripted import LENGTH, ScriptedEngine, requests


class Times:
    def __init__(self):
        self.ttft = []
        self.gaps = []

    def first_token(self, ttft_s):
        self.ttft.append(ttft_s)

    def next_tokens(self, gap_s, num_tokens):
        self.gaps.append((gap_s, num_tokens))


class Bench:
    """A generation of choices a, b, … on a scripted engine, at a time the test sets."""

    def __init__(self, *ids, stops=(), max_pending=100):
        self.now = 10.0
        self.engine = ScriptedEngine()
        self.link = EngineLink(self.engine, asyncio.get_running_loop())
        self.times = Times()
        self.generation = Generation(
            self.link, self.times, arrival=10.0, clock=lambda: self.now, max_pending=max_pending
        )
        matcher = StopMatcher(stops) if stops else None
        choices = [Choice(index, lambda token: bytes((token,)), matcher=matcher) for index in range(len(ids))]
        self.pairs = list(zip(requests(*ids), choices, strict=True))

    def start(self):
        self.generation.start(self.pairs)
        return self.generation


async def settled():
    """Let the loop's callbacks run."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_pieces_come_in_the_order_of_steps_until_all_choices_end():
    """The ordinary life of a request with two choices."""
    bench = Bench("a", "b")
    with bench.start() as generation:
        bench.engine.deliver("a", 65)
        bench.engine.deliver("b", 66)
        assert [(p.index, p.text) for p in await generation.next_pieces()] == [(0, "A"), (1, "B")]
        bench.engine.deliver("b", 67, number=2, finish=LENGTH)
        assert [p.finish.reason for p in await generation.next_pieces()] == ["length"]
        bench.engine.deliver("a", 68, number=2, finish=LENGTH)
        assert len(await generation.next_pieces()) == 1
        assert await generation.next_pieces() == []
    assert bench.engine.aborted == []
    assert bench.link.num_open == 0


async def test_leaving_aborts_what_still_runs_once():
    """A client that goes frees the engine; a choice that has ended is not aborted."""
    bench = Bench("a", "b")
    with bench.start():
        bench.engine.deliver("a", 65, finish=LENGTH)
        await settled()
    assert bench.engine.aborted == ["b"]
    assert bench.link.num_open == 0
    bench.engine.deliver("b", 66, finish=FinishReason.ABORT)  # arrives late, for nobody
    await settled()


async def test_a_stop_string_ends_the_sequence_in_the_engine():
    """Before anybody reads: the engine must not go on for a slow client."""
    bench = Bench("a", stops=["B"])
    with bench.start() as generation:
        bench.engine.deliver("a", 65)
        bench.engine.deliver("a", 66, number=2)
        bench.engine.deliver("a", 67, number=3)
        await settled()
        assert bench.engine.aborted == ["a"]
        assert "".join(p.text for p in await generation.next_pieces()) == "A"
        assert await generation.next_pieces() == []
    assert bench.engine.aborted == ["a"]


async def test_a_refused_sequence_refuses_the_request():
    """Half of the choices is no answer: those already queued are taken back."""
    bench = Bench("a", "b")
    bench.engine.refusals = [None, Refusal(RefusalReason.QUEUE_FULL, "full")]
    with pytest.raises(ApiError) as caught:
        bench.start()
    assert (caught.value.status, caught.value.code, caught.value.retry_after_s) == (503, "queue_full", 1)
    assert bench.engine.aborted == ["a"]
    assert bench.link.num_open == 0


@pytest.mark.parametrize("reason", list(RefusalReason))
async def test_every_refusal_has_a_status(reason):
    """The caller's fault is a 400, the moment's a 503, an id of ours in use a 500."""
    bench = Bench("a")
    bench.engine.refusals = [Refusal(reason, "because")]
    with pytest.raises(ApiError) as caught:
        bench.start()
    expected = 400 if reason.is_callers_fault else 500 if reason is RefusalReason.DUPLICATE_ID else 503
    assert caught.value.status == expected


async def test_a_fault_of_the_engine_reaches_the_reader_after_what_came_before_it():
    """Text that was delivered is not lost; siblings of the failed choice end too."""
    bench = Bench("a", "b")
    with bench.start() as generation:
        bench.engine.deliver("a", 65)
        bench.engine.deliver("a", number=1, finish=FinishReason.ERROR)
        await settled()
        assert bench.engine.aborted == ["b"]
        assert len(await generation.next_pieces()) == 1
        with pytest.raises(ApiError) as caught:
            await generation.next_pieces()
        assert caught.value.status == 500


async def test_a_failed_generation_keeps_its_first_error():
    """A drain that ends what a fault has ended already changes nothing."""
    bench = Bench("a")
    with bench.start() as generation:
        generation.fail(unavailable("first", code="x"))
        generation.fail(unavailable("second", code="y"))
        with pytest.raises(ApiError, match="first"):
            await generation.next_pieces()
    assert bench.engine.aborted == ["a"]


async def test_a_reader_that_never_reads_is_given_up():
    """Memory is bounded by pieces, not by patience."""
    bench = Bench("a", max_pending=3)
    with bench.start() as generation:
        for number in range(1, 10):
            bench.engine.deliver("a", 65, number=number)
        await settled()
        assert bench.engine.aborted == ["a"]
        assert len(await generation.next_pieces()) == 4
        with pytest.raises(ApiError) as caught:
            await generation.next_pieces()
        assert caught.value.code == "slow_client"


async def test_times_are_measured_when_tokens_arrive():
    """TTFT once a request, then each sequence's gaps."""
    bench = Bench("a", "b")
    with bench.start() as generation:
        for now, id_ in ((10.5, "a"), (10.75, "b"), (11.5, "a")):
            bench.now = now
            bench.engine.deliver(id_, 65)
            await settled()
        assert generation.ttft_s == 0.5
    assert bench.times.ttft == [0.5]
    assert bench.times.gaps == [(1.0, 1)]


async def test_deltas_from_another_thread_wake_the_loop_once_a_step():
    """The engine's thread never touches the loop but to wake it, and a step of many costs one wake-up."""
    bench = Bench(*map(str, range(50)))
    loop = asyncio.get_running_loop()
    wakes = []
    original = loop.call_soon_threadsafe
    loop.call_soon_threadsafe = lambda *args, **kwargs: (wakes.append(args), original(*args, **kwargs))
    with bench.start() as generation:
        step = threading.Thread(target=lambda: [bench.engine.deliver(str(n), 65, finish=LENGTH) for n in range(50)])
        step.start()
        step.join()
        assert len(await generation.next_pieces()) == 50
        assert await generation.next_pieces() == []
    del loop.call_soon_threadsafe
    assert len(wakes) == 1


async def test_an_engine_may_outlive_its_loop():
    """A late delta into a closed loop is dropped, not raised in the engine's thread."""
    closed = asyncio.new_event_loop()
    closed.close()
    engine = ScriptedEngine()
    link = EngineLink(engine, closed)
    link.submit(requests("a")[0], lambda _: None)
    engine.deliver("a", 65)
    assert link.num_open == 1
