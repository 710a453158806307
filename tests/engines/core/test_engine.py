"""The engine thread: every accepted request ends exactly once, whatever breaks around it."""

import random
import threading
import time
from dataclasses import astuple

import pytest

from engines.core.admission import RefusalReason, SchedulerSettings
from engines.core.engine import Engine
from engines.core.events import AllBlocksCleared, Medium
from engines.core.holders import SlotHolders
from engines.core.host_tier import HostSettings
from engines.core.latency_guard import LatencySettings
from engines.core.load import LaneCounts
from engines.core.plan import EngineFault
from engines.core.scheduler import Scheduler
from engines.core.sequence import FinishReason, GenerateRequest, SamplingParams
from engines.fake.runner import FakeRunner
from engines.step_cost import StepCost, StepCostFitter
from policies.lane import Lane
from tests.engines.core.driven import Driven, words
from tests.engines.core.event_index import EventIndex

PATIENCE_S = 20.0


class Inbox:
    """Receives the deltas of one request and knows when the last has come."""

    def __init__(self):
        self.deltas = []
        self.first, self.done = threading.Event(), threading.Event()

    def __call__(self, delta):
        assert not self.done.is_set(), "a delta after the last"
        self.deltas.append(delta)
        self.first.set()
        if delta.finish_reason is not None:
            self.done.set()

    def wait(self):
        assert self.done.wait(PATIENCE_S), "no last delta"
        return self.deltas[-1]

    @property
    def tokens(self):
        return [token for delta in self.deltas for token in delta.token_ids]


class Gate:
    """A `sleep` that lets steps pass only when open, so that tests decide what happens in mid-step."""

    def __init__(self, *, is_open=False):
        self.entered, self.open = threading.Event(), threading.Event()
        if is_open:
            self.open.set()

    def __call__(self, seconds):
        self.entered.set()
        assert self.open.wait(PATIENCE_S), "the gate was never opened"


def scheduler(**changes):
    fields = {"max_seqs": 4, "max_step_tokens": 64, "context_tokens": 256, "kv_tokens": 1024, "block_size": 4}
    settings = SchedulerSettings(**(fields | changes))
    return Scheduler(settings, SlotHolders(8, settings.block_size))


def runner(**options):
    return FakeRunner(num_slots=8, kv_tokens=1024, max_step_tokens=64, eos_every=0, **options)


def request(id_="r", prompt=(1, 2, 3), max_tokens=5, **fields):
    return GenerateRequest(id_, tuple(words(*prompt)), SamplingParams(temperature=0, max_tokens=max_tokens), **fields)


@pytest.fixture
def make_engine():
    """Makes engines and stops them after the test."""
    made = []

    def make(device=None, rules=None, *, start=True, **options):
        engine = Engine(device or runner(), rules or scheduler(), checks_when_idle=True, **options)
        made.append(engine)
        if start:
            engine.start()
        return engine

    yield make
    for engine in made:
        assert engine.stop(), "the engine thread is stuck"
        assert engine.num_open == 0


def ask(engine, *args, **fields):
    inbox = Inbox()
    assert engine.submit(request(*args, **fields), inbox) is None
    return inbox


def test_answers_are_those_of_the_rules_alone(make_engine):
    """The thread adds nothing and loses nothing."""
    engine = make_engine()
    inbox = ask(engine)
    last = inbox.wait()
    bare = Driven(kv_tokens=1024)
    bare.add("r", words(1, 2, 3), SamplingParams(temperature=0, max_tokens=5))
    bare.run()
    assert inbox.tokens == bare.output("r")
    assert (last.finish_reason, last.num_output, last.prompt_tokens) == (FinishReason.LENGTH, 5, 3)


def test_an_idle_engine_wakes_for_the_next_request(make_engine):
    """It waits on a condition between requests, and its accounting is sound whenever it does."""
    faults = []
    engine = make_engine(on_fault=faults.append)
    for number in range(3):
        ask(engine, str(number)).wait()
    assert engine.is_healthy()
    assert faults == []


def test_what_can_never_fit_is_refused_at_once(make_engine):
    """A value with a reason, before anything is queued."""
    engine = make_engine()
    refusal = engine.submit(request(max_tokens=1000), Inbox())
    assert refusal.reason is RefusalReason.CONTEXT_EXCEEDED
    assert engine.num_open == 0


def test_the_queue_is_bounded_exactly(make_engine):
    """Requests that the engine thread has not seen yet count too."""
    engine = make_engine(rules=scheduler(max_waiting=2), start=False)
    first, second = ask(engine, "a"), ask(engine, "b")
    assert engine.load().waiting == 2
    assert engine.submit(request("a"), Inbox()).reason is RefusalReason.DUPLICATE_ID
    assert engine.submit(request("c"), Inbox()).reason is RefusalReason.QUEUE_FULL
    engine.start()
    assert {first.wait().finish_reason, second.wait().finish_reason} == {FinishReason.LENGTH}
    assert ask(engine, "c").wait().finish_reason is FinishReason.LENGTH


def test_a_flood_of_bulk_fills_its_own_queue_only(make_engine):
    """Unseen requests count by lane as well; the engine is full when no lane could be queued."""
    engine = make_engine(rules=scheduler(max_waiting=2), start=False)
    bulk = [ask(engine, f"bulk-{number}", lane=Lane.BULK) for number in range(2)]
    assert engine.submit(request("more", lane=Lane.BULK), Inbox()).reason is RefusalReason.QUEUE_FULL
    assert not engine.is_full()
    urgent = [ask(engine, "a"), ask(engine, "b", lane=Lane.STANDARD)]
    assert engine.submit(request("c"), Inbox()).reason is RefusalReason.QUEUE_FULL
    assert engine.is_full()
    engine.start()
    assert {one.wait().finish_reason for one in [*bulk, *urgent]} == {FinishReason.LENGTH}
    assert not engine.is_full()


def test_abort_before_in_and_after(make_engine):
    """A client may leave at any time; leaving twice or after the end is harmless."""
    gate = Gate()
    engine = make_engine(runner(sleep=gate))
    running = ask(engine, "running", max_tokens=200)
    assert gate.entered.wait(PATIENCE_S)
    unseen = ask(engine, "unseen")
    for id_ in ("unseen", "running", "running", "never"):
        engine.abort(id_)
    gate.open.set()
    assert unseen.wait().finish_reason is FinishReason.ABORT
    assert running.wait().finish_reason is FinishReason.ABORT
    engine.abort("running")
    assert ask(engine, "running").wait().finish_reason is FinishReason.LENGTH


def test_a_fault_costs_the_sequences_of_its_step(make_engine):
    """The device failed: those in the step end with an error, the next request is served."""
    faults = []
    engine = make_engine(runner(failing_steps=frozenset({2})), on_fault=faults.append)
    last = ask(engine).wait()
    assert (last.finish_reason, last.error) == (
        FinishReason.ERROR,
        "The engine failed while computing this request.",
    )
    assert ask(engine).wait().finish_reason is FinishReason.LENGTH
    assert [type(fault) for fault in faults] == [EngineFault]
    assert engine.is_healthy()


def test_faults_in_a_row_make_it_unhealthy_and_a_good_step_heals(make_engine):
    """A supervisor restarts a worker whose device is gone, and only that."""
    gate = Gate(is_open=True)
    engine = make_engine(runner(failing_steps=frozenset({1, 2}), sleep=gate), max_faults=2)
    for number in range(2):
        assert engine.is_healthy()
        ask(engine, str(number)).wait()
    assert not engine.is_healthy()
    ask(engine, "good").wait()
    assert engine.is_healthy()
    assert engine.stop()
    assert engine.load().faults == 2


@pytest.mark.parametrize("method", ["schedule", "complete", "add", "check_integrity"])
def test_a_bug_in_the_rules_ends_everything_open_and_starts_anew(make_engine, method):
    """Nobody hangs on a request that the rules have lost."""
    rules = scheduler()
    good, calls = getattr(rules, method), []

    def bad(*args):
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("bug")
        return good(*args)

    setattr(rules, method, bad)
    faults = []
    engine = make_engine(rules=rules, on_fault=faults.append, start=False)
    inboxes = [ask(engine, id_) for id_ in "ab"]
    engine.start()
    reasons = {inbox.wait().finish_reason for inbox in inboxes}
    assert reasons == ({FinishReason.LENGTH} if method == "check_integrity" else {FinishReason.ERROR})
    assert ask(engine, "c").wait().finish_reason is FinishReason.LENGTH
    assert [str(fault) for fault in faults] == ["bug"]


def test_a_receiver_that_raises_is_aborted_and_others_go_on(make_engine):
    """A closed event loop must not take the engine with it."""
    faults = []

    def gone(delta):
        raise RuntimeError("loop is closed")

    engine = make_engine(on_fault=faults.append, start=False)
    assert engine.submit(request("gone", max_tokens=200), gone) is None
    other = ask(engine, "other")
    engine.start()
    assert other.wait().finish_reason is FinishReason.LENGTH
    assert engine.stop(PATIENCE_S)
    assert engine.load().generation_tokens < 50
    assert {str(fault) for fault in faults} == {"loop is closed"}


def test_a_step_log_that_raises_costs_nothing(make_engine):
    """Observers are told, and not believed."""

    def on_step(record):
        raise RuntimeError("disk full")

    faults = []
    engine = make_engine(on_step=on_step, on_fault=faults.append)
    assert ask(engine, max_tokens=2).wait().finish_reason is FinishReason.LENGTH
    assert engine.stop()
    assert [str(fault) for fault in faults] == ["disk full"] * 2


def test_the_step_log_has_plans_and_seconds(make_engine):
    """What was computed when, for cost models and for tests of isolation."""
    time = iter(range(1000))
    steps = []
    engine = make_engine(on_step=steps.append, clock=lambda: next(time))
    ask(engine, max_tokens=3).wait()
    assert engine.stop()
    made = [(step.plan.number, step.plan.num_tokens, step.seconds) for step in steps]
    assert made == [(1, 3, 1), (2, 1, 1), (3, 1, 1)]
    assert {step.outlook.lanes for step in steps} == {(Lane.INTERACTIVE,)}
    assert (engine.load().num_steps, engine.load().step_s) == (3, 1)


def test_the_cost_of_steps_is_learned_and_the_lanes_go_by_it(make_engine):
    """The fitter sees each step's rows, tokens and seconds; the scheduler gets what it makes of them."""
    true = StepCost(base_s=0.010, per_row_s=0.005, per_prefill_token_s=0.001)
    now, steps = [0.0], []

    def spend(seconds):
        now[0] += seconds

    rules = scheduler(latency=LatencySettings(bulk_patience_s=1e9))
    fitter = StepCostFitter(StepCost(0.02, 0.002, 0.002))
    engine = make_engine(
        runner(cost=true, sleep=spend), rules, start=False, fitter=fitter, on_step=steps.append, clock=lambda: now[0]
    )
    bulk = [ask(engine, f"bulk-{number}", range(number, 20), max_tokens=20, lane=Lane.BULK) for number in range(3)]
    urgent = ask(engine, "urgent", range(50, 55), max_tokens=30)
    engine.start()
    for inbox in (*bulk, urgent):
        assert inbox.wait().finish_reason is FinishReason.LENGTH
    assert engine.stop()
    load = engine.load()
    assert steps[0].outlook.cost == StepCost(0.02, 0.002, 0.002)
    assert load.step_cost == fitter.cost
    assert astuple(fitter.cost) == pytest.approx(astuple(true), rel=0.05)
    assert load.bulk_rows_left_out > 0
    urgent_steps = [step for step in steps if step.outlook.objective_s is not None]
    assert all(step.outlook.modelled_s <= step.outlook.objective_s for step in urgent_steps)


def test_load_counts_tokens_hits_and_seats(make_engine):
    """What the gateway routes by."""
    gate = Gate()
    engine = make_engine(runner(sleep=gate), rules=scheduler(max_seqs=1))
    first = ask(engine, "a", range(9), max_tokens=4)
    assert gate.entered.wait(PATIENCE_S)
    second = ask(engine, "b", range(9), max_tokens=4)
    load = engine.load()
    assert (load.running, load.waiting, load.kv_used_ratio) == (1, 1, 3 / 256)
    assert (load.running_by_lane, load.waiting_by_lane) == (LaneCounts(1, 0, 0), LaneCounts())
    gate.open.set()
    first.wait()
    assert second.wait().cached_tokens == 8
    assert engine.stop()
    load = engine.load()
    assert (load.running, load.waiting, load.kv_used_ratio) == (0, 0, 0.0)
    assert (load.prefix_query_tokens, load.prefix_hit_tokens, load.generation_tokens) == (18, 8, 8)
    assert load.kv_cached_ratio > 0


def test_draining_finishes_what_is_open_and_takes_nothing_new(make_engine):
    """An upgrade must not cut streams."""
    gate = Gate()
    engine = make_engine(runner(sleep=gate))
    inbox = ask(engine)
    engine.drain()
    assert engine.load().is_draining
    assert engine.submit(request("late"), Inbox()).reason is RefusalReason.STOPPING
    gate.open.set()
    assert engine.stop(PATIENCE_S)
    assert inbox.wait().finish_reason is FinishReason.LENGTH


def test_stop_aborts_what_grace_did_not_finish_and_closes_the_runner(make_engine):
    """Whoever is still open gets an end, then the device is given back; stopping twice is harmless."""
    gate = Gate()
    device = runner(sleep=gate)
    engine = make_engine(device)
    running = ask(engine, "running", max_tokens=200)
    assert gate.entered.wait(PATIENCE_S)
    unseen = ask(engine, "unseen")
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    while not engine.load().is_draining:
        threading.Event().wait(0.001)
    gate.open.set()
    stopping.join()
    assert engine.stop()
    assert {running.wait().finish_reason, unseen.wait().finish_reason} == {FinishReason.ABORT}
    assert device.is_closed
    assert not engine.is_healthy()


def test_stop_without_start_ends_what_was_asked(make_engine):
    """A worker may fail between making the engine and starting it."""
    device = runner()
    engine = make_engine(device, start=False)
    inbox = ask(engine)
    assert engine.stop()
    assert inbox.wait().finish_reason is FinishReason.ABORT
    assert device.is_closed
    with pytest.raises(AssertionError, match="cannot be started"):
        engine.start()


def test_a_step_over_its_limit_is_unhealthy_and_left_behind(make_engine):
    """A hung device must not hang the stop as well."""
    gate, now = Gate(), [0.0]
    engine = make_engine(runner(sleep=gate), clock=lambda: now[0], step_limit_s=0.05)
    inbox = ask(engine)
    assert gate.entered.wait(PATIENCE_S)
    assert engine.is_healthy()
    now[0] = 0.1
    assert not engine.is_healthy()
    assert not engine.stop()
    gate.open.set()
    inbox.wait()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_device_that_cannot_even_be_cleared_ends_the_engine(make_engine):
    """There is nothing to go on with: everybody gets an end, and health says so."""
    device = runner(failing_steps=frozenset({1}))
    gate = Gate()

    def clear():
        assert gate.open.wait(PATIENCE_S)
        raise OSError("device lost")

    device.clear = clear
    engine = make_engine(device)
    first = ask(engine, "a")
    first.wait()
    second = ask(engine, "b")
    gate.open.set()
    assert second.wait().error == "The engine has broken down."
    assert engine.stop()
    assert not engine.is_healthy()
    assert engine.submit(request("c"), Inbox()).reason is RefusalReason.STOPPING
    assert device.is_closed


@pytest.mark.parametrize(
    "changes", [{"max_seqs": 9}, {"kv_tokens": 2048}, {"max_step_tokens": 65}, {"max_resident": 9}]
)
def test_rules_that_ask_too_much_of_the_runner_are_refused(changes):
    """At start, with the number, not in some step."""
    settings = SchedulerSettings(
        **({"max_seqs": 4, "max_step_tokens": 64, "context_tokens": 256, "kv_tokens": 1024} | changes)
    )
    with pytest.raises(ValueError, match="but the runner offers"):
        Engine(runner(), Scheduler(settings))


def test_many_threads_asking_and_leaving_all_get_one_end(make_engine):
    """Submits and aborts from several threads, with faults in between, leave nothing behind."""
    engine = make_engine(runner(failing_steps=frozenset({7, 20, 21})), rules=scheduler(kv_tokens=256, max_waiting=500))
    inboxes, lock = [], threading.Lock()

    def client(seed):
        chance = random.Random(seed)
        for number in range(25):
            id_ = f"{seed}-{number}"
            inbox = Inbox()
            prompt = [*range(chance.randint(1, 40)), chance.randint(0, 3)]
            assert engine.submit(request(id_, prompt, max_tokens=chance.randint(1, 40)), inbox) is None
            with lock:
                inboxes.append(inbox)
            if chance.random() < 0.4:
                inbox.first.wait(PATIENCE_S if chance.random() < 0.5 else 0)
                engine.abort(id_)

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reasons = {inbox.wait().finish_reason for inbox in inboxes}
    assert len(inboxes) == 100
    assert FinishReason.LENGTH in reasons
    assert engine.num_open == 0
    assert repr(engine).startswith("<Engine open=0 <Scheduler running=0 waiting=0")


def wait_until(condition):
    """Poll what another thread does."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        threading.Event().wait(0.001)


def test_a_paused_engine_makes_no_step_and_loses_nothing(make_engine):
    """It stops between two steps; resumed, it goes on as if nothing had been."""
    gate, steps = Gate(), []
    engine = make_engine(runner(sleep=gate), on_step=steps.append)
    inbox = ask(engine, max_tokens=5)
    assert gate.entered.wait(PATIENCE_S)
    assert not engine.pause(), "a step is being made"
    gate.open.set()
    assert engine.pause(PATIENCE_S)
    assert engine.load().is_paused
    made = len(steps)
    late = ask(engine, "late")
    assert engine.kv_snapshot(PATIENCE_S) == ()  # an errand wakes the thread, and still no step is made
    assert len(steps) == made
    assert engine.num_open == 2
    assert engine.is_healthy()
    engine.resume()
    engine.resume()
    bare = Driven(kv_tokens=1024)
    bare.add("r", words(1, 2, 3), SamplingParams(temperature=0, max_tokens=5))
    bare.run()
    assert inbox.wait().finish_reason is late.wait().finish_reason is FinishReason.LENGTH
    assert inbox.tokens == bare.output("r")
    assert not engine.load().is_paused


def test_what_is_open_can_be_aborted_while_paused(make_engine):
    """Clients leave whether or not there are steps; those seated, waiting and not even seen."""
    engine = make_engine(rules=scheduler(max_seqs=1))
    assert engine.pause(PATIENCE_S)
    assert engine.pause()
    inboxes = [ask(engine, id_, max_tokens=100) for id_ in "abc"]
    engine.resume()
    inboxes[0].first.wait(PATIENCE_S)
    assert engine.pause(PATIENCE_S)
    for id_ in "abc":
        engine.abort(id_)
    assert {inbox.wait().finish_reason for inbox in inboxes} == {FinishReason.ABORT}
    engine.resume()
    assert ask(engine, "d").wait().finish_reason is FinishReason.LENGTH


def test_stopping_while_paused_waits_for_nobody(make_engine):
    """Nothing would end in the grace, so there is none."""
    engine = make_engine()
    assert engine.pause(PATIENCE_S)
    inbox = ask(engine, max_tokens=100)
    assert engine.stop(grace_s=1e6)
    assert inbox.wait().finish_reason is FinishReason.ABORT
    assert engine.pause()


def test_pausing_and_resuming_at_any_moment_changes_no_answer(make_engine):
    """Threads that ask, leave, pause and resume in between: one end each, the right tokens, sound accounts."""
    faults = []
    engine = make_engine(on_fault=faults.append)
    is_over = threading.Event()

    def flicker():
        while not is_over.is_set():
            assert engine.pause(PATIENCE_S)
            engine.resume()

    thread = threading.Thread(target=flicker)
    thread.start()
    inboxes = [ask(engine, str(number), (1, 2, 3), max_tokens=20) for number in range(20)]
    for number in range(0, 20, 5):
        engine.abort(str(number))
    ends = [inbox.wait() for inbox in inboxes]
    is_over.set()
    thread.join(PATIENCE_S)
    whole = [inbox.tokens for inbox, end in zip(inboxes, ends, strict=True) if end.finish_reason is FinishReason.LENGTH]
    assert len(whole) >= 16
    assert all(tokens == whole[0] for tokens in whole)
    assert faults == []


def test_kv_events_come_after_each_step_and_tell_what_is_cached(make_engine):
    """Followed from the first to the last, with faults in between, they are what a snapshot says."""
    index, threads = EventIndex(), set()

    def follow(events):
        threads.add(threading.current_thread().name)
        index.apply(events)

    device = runner(failing_steps=frozenset({9}), host_bytes_per_token=100)
    rules = scheduler(kv_tokens=128, context_tokens=128, host=HostSettings(max_tokens=256, min_tokens=8))
    engine = make_engine(device, rules, on_events=follow)
    for number in range(12):
        ask(engine, str(number), range(20 * (number % 5), 20 * (number % 5) + 60), max_tokens=4).wait()
    snapshot = engine.kv_snapshot(PATIENCE_S)
    assert EventIndex(snapshot) == index
    assert index.hashes(Medium.DEVICE)
    assert index.hashes(Medium.HOST)
    assert threads == {"engine"}
    load = engine.load()
    assert load.kv_host_bytes == 100 * rules.statistics().host.used_tokens > 0
    assert load.kv_saved_tokens >= load.kv_host_bytes // 100


def test_whoever_lost_events_gets_them_anew_in_their_place(make_engine):
    """All is cleared and told again, in the same stream, so that nothing is out of order."""
    heard = []
    engine = make_engine(on_events=heard.extend)
    ask(engine, "a", range(20)).wait()
    engine.resend_events()
    wait_until(lambda: heard.count(AllBlocksCleared()) == 2)
    ask(engine, "b", range(50, 70)).wait()
    snapshot = engine.kv_snapshot(PATIENCE_S)
    again = len(heard) - 1 - heard[::-1].index(AllBlocksCleared())
    assert EventIndex(heard[again:]) == EventIndex(snapshot)


def test_a_follower_that_raises_costs_nothing(make_engine):
    """It is told, and not believed."""

    def follow(events):
        raise RuntimeError("socket closed")

    faults = []
    engine = make_engine(on_events=follow, on_fault=faults.append)
    assert ask(engine, prompt=range(20)).wait().finish_reason is FinishReason.LENGTH
    assert engine.stop()
    assert {str(fault) for fault in faults} == {"socket closed"}


def test_without_a_follower_a_snapshot_is_still_right(make_engine):
    """Nothing is gathered, but what is cached is known."""
    engine = make_engine()
    ask(engine, prompt=range(20)).wait()
    assert len(EventIndex(engine.kv_snapshot(PATIENCE_S)).hashes(Medium.DEVICE)) == 6


def test_a_snapshot_is_refused_in_time_by_a_stuck_engine_and_empty_after_its_end(make_engine):
    """Nobody waits for ever for an answer that does not come."""
    gate = Gate()
    engine = make_engine(runner(sleep=gate))
    inbox = ask(engine)
    assert gate.entered.wait(PATIENCE_S)
    with pytest.raises(TimeoutError):
        engine.kv_snapshot(0.01)
    gate.open.set()
    inbox.wait()
    assert engine.stop()
    assert engine.kv_snapshot() == ()
    engine.resend_events()


def test_an_idle_engine_saves_ahead_by_itself(make_engine):
    """Steps without rows are made while nothing is open, are logged, and end."""
    steps = []
    rules = scheduler(kv_tokens=128, context_tokens=128, host=HostSettings(max_tokens=256, min_tokens=8))
    engine = make_engine(runner(host_bytes_per_token=1, cost=StepCost(1e-3, 1e-4, 1e-4)), rules, on_step=steps.append)
    ask(engine, "a", range(100), max_tokens=4).wait()
    wait_until(lambda: engine.load().kv_saved_tokens == 100)
    assert engine.stop()
    assert [len(step.plan.rows) for step in steps][-1] == 0
    assert engine.load().num_steps == steps[-1].plan.number


def test_host_memory_needs_a_runner_that_copies():
    """Said at start, not by a plan that the device does not understand."""
    with pytest.raises(ValueError, match="no copies"):
        Engine(runner(), scheduler(host=HostSettings(max_tokens=64)))
