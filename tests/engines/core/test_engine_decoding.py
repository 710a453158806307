"""The engine thread with grammars and drafts: masks beside the device, several tokens a delta."""

import queue
import threading
from typing import ClassVar

import pytest

from engines.core.admission import SchedulerSettings
from engines.core.engine import Engine
from engines.core.holders import SlotHolders
from engines.core.scheduler import Scheduler
from engines.core.sequence import FinishReason, GenerateRequest, SamplingParams
from engines.fake.model import IM_END
from engines.fake.runner import FakeRunner
from tests.engines.core.driven import words
from tests.engines.core.toy_grammar import ToyGrammar

A, B, C = words(1, 2, 3)
LOOP = ToyGrammar({0: {A: 1}, 1: {B: 2}, 2: {A: 1, C: 3}})


class Watched(ToyGrammar):
    """Notes in which threads its masks are filled."""

    threads: ClassVar[set[str]] = set()

    def start(self):
        state = super().start()
        fill = state.fill
        state.fill = lambda mask: (self.threads.add(threading.current_thread().name), fill(mask))[1]
        return state


def run(requests, max_drafts=8, **options):
    """All deltas of these requests by id, and the engine's load in the end."""
    settings = SchedulerSettings(
        max_seqs=4,
        max_step_tokens=64,
        context_tokens=256,
        kv_tokens=512,
        block_size=4,
        eos_ids=frozenset({IM_END}),
        max_drafts=max_drafts,
        max_resident=8,
    )
    runner = FakeRunner(num_slots=8, kv_tokens=512, max_step_tokens=64, eos_every=0, **options)
    engine = Engine(runner, Scheduler(settings, SlotHolders(8, 4)), checks_when_idle=True)
    received, found = queue.Queue(), {request.id: [] for request in requests}
    for request in requests:
        assert engine.submit(request, received.put) is None
    engine.start()
    try:
        while not all(deltas and deltas[-1].finish_reason for deltas in found.values()):
            delta = received.get(timeout=20)
            found[delta.request_id].append(delta)
        return found, engine.load()
    finally:
        assert engine.stop()


def request(id_, grammar=None, **sampling):
    fields = {"temperature": 0, "max_tokens": 20, "logprobs": 0} | sampling
    return GenerateRequest(id_, tuple(words(1, 2, 1, 2, 1, 2)), SamplingParams(**fields), grammar=grammar)


@pytest.mark.parametrize("seed", range(4))
def test_a_masked_answer_comes_in_deltas_of_several_tokens(seed):
    """Each with a logprob; all of them what the grammar allows, and the same as one by one."""
    requests = [request("masked", LOOP, temperature=1.0, seed=seed), request("free")]
    found, load = run(requests)
    deltas = found["masked"]
    output = [token for delta in deltas for token in delta.token_ids]
    assert LOOP.begins(output)
    assert all(len(delta.logprobs) == len(delta.token_ids) for delta in deltas)
    assert max(len(delta.token_ids) for delta in deltas) > 1
    assert deltas[-1].num_output == len(output)
    assert load.accepted_tokens > 0
    singly, plain = run(requests, max_drafts=0)
    assert output == [token for delta in singly["masked"] for token in delta.token_ids]
    assert (plain.drafted_tokens, load.generation_tokens) == (0, plain.generation_tokens)


def test_masks_are_filled_beside_the_step():
    """Not in the engine's thread, which waits for the device; and the thread ends with the engine."""
    watched = Watched(LOOP.moves)
    found, _ = run([request("masked", watched)])
    assert {name.partition("_")[0] for name in watched.threads} == {"masks"}
    assert found["masked"][-1].finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert not any(thread.name.startswith("masks") for thread in threading.enumerate())


def test_a_grammar_beyond_its_bounds_ends_its_own_sequence():
    """With its sentence; whoever shared the step goes on."""
    failing = ToyGrammar(LOOP.moves, fails_in=frozenset({1}))
    found, load = run([request("masked", failing), request("free")])
    last = found["masked"][-1]
    assert (last.finish_reason, last.error, last.num_output) == (FinishReason.ERROR, "Too much.", 1)
    assert found["free"][-1].finish_reason is FinishReason.LENGTH
    assert load.faults == 0


def test_a_failed_step_waits_for_its_masks():
    """The device fails while masks are filled: every request still ends once, and the engine goes on."""
    found, load = run([request("masked", LOOP), request("free")], failing_steps=frozenset({2}))
    assert {deltas[-1].finish_reason for deltas in found.values()} == {FinishReason.ERROR}
    assert load.faults == 1
