"""A client leaves at each moment of its request, on the real model: nothing stays held, and nobody else notices."""

import threading
from dataclasses import replace

import pytest

from engines.core.admission import RefusalReason, SchedulerSettings
from engines.core.engine import Engine
from engines.core.holders import SlotHolders
from engines.core.plan import Restore, Save
from engines.core.scheduler import Scheduler
from engines.core.sequence import FinishReason, GenerateRequest, SamplingParams
from policies.lane import Lane
from tests.engines.gguf.bare import device_of
from tests.engines.gguf.driven_model import DrivenModel, Twin

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]

PATIENCE_S = 60.0
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.9, top_p=0.9, seed=11, max_tokens=10, ignore_eos=True)
BRIEF = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
TEXTS = {"neighbour": ("The capital of France is", GREEDY), "other": ("Once there was a clock that", DRAWN)}
LEAVER = "The rooms by the river were quiet. Seven clocks in seven rooms told seven times, and the librarian, who was old, wound them all every morning, one by one, for"


@pytest.fixture(scope="module")
def device(model):
    """Steps so short that what the library computes does not depend on their shape."""
    requests = {
        name: GenerateRequest(name, tuple(model.encode(text, special=False)), sampling)
        for name, (text, sampling) in {**TEXTS, "leaver": (LEAVER, BRIEF)}.items()
    }
    with device_of(model, requests) as device:
        yield device


class Scene:
    """Two neighbours that decode, and one who leaves. Cells for them and three blocks more."""

    def __init__(self, device, **settings):
        self.device = device
        sizes = {"max_step_tokens": 16, "kv_tokens": 96, "host_tokens": 256} | settings
        self.driven = DrivenModel(device, **sizes)

    @property
    def plan(self):
        return self.driven.plans[-1]

    def add(self, name, id_=None, **changes):
        self.driven.ask(replace(self.device.requests[name], **changes), id_ or name)

    def add_neighbours(self):
        for name in TEXTS:
            self.add(name)
        self.driven.step()

    def leave_when(self, is_time, *, in_flight=False, id_="leaver"):
        """Make steps until it is time, in the middle of one or behind it; the client of `id_` leaves then."""
        driven, left = self.driven, []

        def leave():
            if is_time():
                driven.abort(id_)
                left.append(True)

        while not left:
            assert driven.step(leave if in_flight else lambda: None) is not None, "it was never time"
            if not in_flight:
                leave()
        assert driven.last(id_).finish_reason is FinishReason.ABORT

    def rows_of(self, id_):
        """The rows of a request in the step being made or just made, by its slot."""
        sequence = self.driven.scheduler._open.get(id_)
        return [row for row in self.plan.rows if sequence is not None and row.slot == sequence.slot]

    def end(self):
        """Nobody noticed, nothing is held, and what the leaver left in the cache is right."""
        driven, device = self.driven, self.device
        driven.run()
        for name in TEXTS:
            if name in driven.deltas:
                device.check_same(name, driven.given(name))
        driven.check_nothing_is_held()
        self.add("leaver", "again")
        driven.run()
        device.check_same("leaver", driven.given("again"))


def test_in_the_queue(device):
    """No seat, no row, no token."""
    scene = Scene(device, max_seqs=2)
    scene.add_neighbours()
    scene.add("leaver")
    scene.leave_when(lambda: True)
    assert not any(row.tokens[0] == device.requests["leaver"].prompt[0] for row in scene.plan.rows)
    scene.end()


@pytest.mark.parametrize("in_flight", [False, True])
def test_between_two_chunks_of_the_prompt(device, in_flight):
    """Its whole blocks can be hit by whoever asks the same."""
    scene = Scene(device)
    scene.add_neighbours()
    scene.add("leaver")
    scene.leave_when(
        lambda: any(row.start > 0 and not row.samples for row in scene.rows_of("leaver")), in_flight=in_flight
    )
    scene.end()
    assert scene.driven.last("again").cached_tokens == 16


@pytest.mark.parametrize("who", ["leaver", "owner"])
def test_while_one_computes_the_prefix_that_another_waits_for(device, who):
    """Whether it was the one that waits or the one that computes: who stays answers, and computes what is missing."""
    scene = Scene(device)
    scene.add_neighbours()
    scene.add("leaver", "owner")
    scene.add("leaver")
    scene.leave_when(lambda: scene.rows_of("owner") and not scene.rows_of("leaver"), id_=who)
    stays = "owner" if who == "leaver" else "leaver"
    scene.driven.run()
    assert scene.driven.last(stays).finish_reason is FinishReason.LENGTH
    device.check_same("leaver", scene.driven.given(stays))
    scene.end()


def test_while_it_decodes_with_drafts(device):
    """Cells of drafts that were never judged are given back with the others."""
    scene = Scene(device, max_drafts=8)
    scene.add_neighbours()
    scene.add("leaver", sampling=SamplingParams(temperature=0, max_tokens=30, logit_bias=((1000, 99.0),)))
    scene.leave_when(lambda: any(row.drafts for row in scene.rows_of("leaver")), in_flight=True)
    scene.end()


def test_while_it_waits_for_its_seat_again(device):
    """Preempted, with output that it has been given already."""
    scene = Scene(device, host_tokens=0)
    scene.add("leaver", lane=Lane.BULK)
    while len(scene.driven.output("leaver")) < 2:
        scene.driven.step()
    assert scene.driven.add("intruder", range(2000, 2090), SamplingParams(max_tokens=1)) is None
    scene.leave_when(lambda: scene.driven.scheduler.statistics().preempted == 1)
    assert scene.driven.last("leaver").num_output == 2
    scene.end()


@pytest.mark.parametrize("in_flight", [False, True])
def test_while_what_it_displaced_is_saved(device, in_flight):
    """The step that makes room for it copies what others had to host memory; that stays, and is right."""
    scene = Scene(device)
    scene.add("leaver", "before")
    scene.driven.run()
    assert scene.driven.add("leaver", range(2000, 2090), SamplingParams(max_tokens=1), salt="other") is None
    scene.leave_when(lambda: any(isinstance(each, Save) for each in scene.plan.memory), in_flight=in_flight)
    scene.end()
    assert scene.driven.scheduler.statistics().host.restored_tokens > 0


@pytest.mark.parametrize("in_flight", [False, True])
def test_while_it_is_restored(device, in_flight):
    """What was copied back can be hit from then on, though nobody is there any more who wanted it."""
    scene = Scene(device, kv_tokens=128)
    scene.add("leaver", "before")
    scene.driven.run()
    assert scene.driven.add("flood", range(2000, 2127), SamplingParams(max_tokens=1), salt="flood") is None
    scene.driven.step(lambda: scene.driven.abort("flood"))
    scene.add_neighbours()
    scene.add("leaver")
    scene.leave_when(lambda: any(isinstance(each, Restore) for each in scene.plan.memory), in_flight=in_flight)
    scene.end()
    assert scene.driven.last("again").cached_tokens >= 16


class Asked:
    """Receives the deltas of one request."""

    def __init__(self, engine, request, id_=None):
        self.tokens, self.last = [], None
        self.first, self.done = threading.Event(), threading.Event()
        assert engine.submit(request, self.receive) is None

    def receive(self, delta):
        assert self.last is None, "a delta after the last"
        self.tokens += delta.token_ids
        self.first.set()
        if delta.finish_reason is not None:
            self.last = delta
            self.done.set()

    def wait(self):
        assert self.done.wait(PATIENCE_S), "no last delta"
        return self.last.finish_reason


@pytest.mark.parametrize("when", ["paused", "draining"])
def test_while_the_engine_is_paused_or_drains(device, when):
    """Who decodes and who waits can leave; the neighbour answers, and the engine's own check finds nothing."""
    settings = SchedulerSettings(2, 16, 1024, 128)
    faults = []
    engine = Engine(
        Twin(device.runner), Scheduler(settings, SlotHolders(12)), on_fault=faults.append, checks_when_idle=True
    )
    engine.start()
    try:
        longer = GenerateRequest(
            "long", device.requests["leaver"].prompt, SamplingParams(max_tokens=60, ignore_eos=True)
        )
        seated = Asked(engine, longer)
        neighbour = Asked(engine, device.requests["neighbour"])
        assert seated.first.wait(PATIENCE_S)
        assert engine.pause(PATIENCE_S)
        queued = Asked(engine, device.requests["other"])
        if when == "draining":
            engine.drain()
            assert engine.submit(device.requests["leaver"], print).reason is RefusalReason.STOPPING
            engine.resume()
        engine.abort("long")
        engine.abort("other")
        assert seated.wait() is queued.wait() is FinishReason.ABORT
        engine.resume()
        assert neighbour.wait() is FinishReason.LENGTH
    finally:
        assert engine.stop(PATIENCE_S)
    device.check_tokens("neighbour", neighbour.tokens)
    assert faults == []
    assert engine.num_open == 0
    assert engine.load().kv_used_ratio == 0
