"""The rules on the real model, driven by hand, with every invariant checked after every step.

Beside llama.cpp each plan is done on simulated cells, which refuse what no device could do; both must then hold the
same.
"""

from dataclasses import replace

from engines.core.admission import SchedulerSettings
from engines.core.holders import SlotHolders
from engines.core.host_tier import HostSettings
from engines.core.plan import Logits, StepPlan
from engines.core.scheduler import Scheduler
from engines.core.sequence import GenerateRequest, SamplingParams
from engines.fake.runner import FakeRunner
from engines.gguf.runner import GgufRunner
from tests.engines.core.driven import NO_TIME, Driven
from tests.engines.core.event_index import EventIndex
from tests.engines.gguf.bare import Answer, Device


class Twin:
    """A runner, whose logits count, and the truth about cells beside it. Empty at first; closing it closes nothing."""

    def __init__(self, runner: GgufRunner):
        self._runner = runner
        self._cells = FakeRunner(
            num_slots=runner.num_slots,
            kv_tokens=runner.kv_tokens,
            max_step_tokens=runner.max_step_tokens,
            host_bytes_per_token=1,
        )
        self.vocab_size, self.num_slots, self.kv_tokens = runner.vocab_size, runner.num_slots, runner.kv_tokens
        self.max_step_tokens, self.max_samples = runner.max_step_tokens, runner.max_samples
        self.host_bytes_per_token = runner.host_bytes_per_token
        self.logits: Logits | None = None  # of the last step; the next one overwrites them
        self.clear()

    @property
    def num_used_cells(self):
        return self._cells.num_used_cells

    def slots(self) -> list[tuple[int, ...]]:
        """The tokens that each slot sees."""
        return self._cells.kv_state()[0]

    def execute(self, plan: StepPlan) -> Logits:
        self._cells.execute(plan)
        self.logits = self._runner.execute(plan)
        self.check()
        return self.logits

    def clear(self):
        self._runner.clear()
        self._cells.clear()

    def close(self):
        pass

    def check(self):
        """Each slot of the library ends where it should, and each saved state has as many tokens as it should."""
        slots, saved = self._cells.kv_state()
        library, memory = self._runner.library, self._runner._memory
        ends = [library.c.llama_memory_seq_pos_max(memory, slot) + 1 for slot in range(self.num_slots)]
        assert ends == [len(tokens) for tokens in slots], "llama.cpp and the plans differ"
        states = {handle: num_tokens for handle, (num_tokens, _) in self._runner._saved._states.items()}
        assert states == {handle: len(tokens) for handle, tokens in saved.items()}, "saved states and plans differ"


class DrivenModel(Driven):
    """Rules of their own over a shared device, which is emptied first. `logits`: by request and output token."""

    def __init__(self, device: Device, *, host_tokens=0, cost=NO_TIME, **settings):
        runner, model = device.runner, device.model
        sizes = {"max_seqs": 4, "max_step_tokens": runner.max_step_tokens, "kv_tokens": runner.kv_tokens}
        sizes |= {"context_tokens": model.context_tokens, "max_resident": runner.num_slots, "eos_ids": model.eos_ids}
        sizes["host"] = HostSettings(max_tokens=host_tokens, min_tokens=16)
        self.cost = cost
        self.settings = SchedulerSettings(**(sizes | settings))
        self.holders = SlotHolders(runner.num_slots, self.settings.block_size)
        self.runner = Twin(runner)
        self.scheduler = Scheduler(self.settings, self.holders)
        self.scheduler.events.gather()
        self.index = EventIndex()
        self.deltas, self.plans, self.outlooks, self.finished = {}, [], [], []
        self.now, self.num_faults = 0.0, 0
        self.logits = {}

    def step(self, in_flight=lambda: None):
        def keep_logits():
            self._keep(self.plans[-1])
            in_flight()

        return super().step(keep_logits)

    def _keep(self, plan):
        start = 0
        for row in self.scheduler.sampling_rows(plan):
            kept = self.logits.setdefault(row.sequence.id, {})
            for number in range(1 + len(row.drafts)):  # of drafts that fail the next step writes over it
                kept[row.sequence.num_output + number] = self.runner.logits[start + number].copy()
            start += 1 + len(row.drafts)

    def ask(self, request: GenerateRequest, id_: str):
        """Let a request wait under this name."""
        assert self.scheduler.add(replace(request, id=id_), self.now) is None
        self.deltas[id_] = []

    def given(self, id_: str) -> Answer:
        """What a request was given so far."""
        tokens = self.output(id_)
        return Answer(tokens, [self.logits[id_][index] for index in range(len(tokens))])

    def check_nothing_is_held(self):
        """Nobody sits or waits; the device's cells are the cached blocks and no more."""
        assert self.add("last", (1,), SamplingParams(max_tokens=1)) is None
        self.run()  # what is given up is told with the next step, so one is made; its own cell stays
        statistics = self.scheduler.statistics()
        assert (statistics.running, statistics.waiting, statistics.used_blocks) == (0, 0, 0)
        assert self.runner.num_used_cells == statistics.cached_blocks * self.settings.block_size + 1
