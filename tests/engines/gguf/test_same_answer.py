"""P46 on the real model: whatever the cache did, the answer is the one of the bare library."""

from dataclasses import replace

import pytest

from engines.core.sequence import FinishReason, GenerateRequest, SamplingParams
from policies.lane import Lane
from tests.engines.gguf.bare import device_of
from tests.engines.gguf.driven_model import DrivenModel

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]

BLOCK, CHUNK = 16, 8  # every other chunk ends inside a block
LENGTHS = sorted({k * size + off for size in (BLOCK, CHUNK) for k in (1, 2, 3) for off in (-1, 0, 1)})
KV_TOKENS = 96  # so that nothing has to go for a prompt that was there twice
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
STORY = "A quiet library by the river had seven rooms, and in each a clock told another time; nobody knew why. " * 3


@pytest.fixture(scope="module")
def device(model):
    """Steps so short that what the library computes does not depend on their shape."""
    text = model.encode(STORY, special=False)
    requests = {length: GenerateRequest("bare", tuple(text[:length]), GREEDY) for length in LENGTHS}
    with device_of(model, requests) as device:
        yield device


class Case:
    """One prompt, the bare library's answer to it, and rules that it is asked of again and again."""

    def __init__(self, device, length, **settings):
        self.device, self.length = device, length
        self.driven = DrivenModel(device, **({"max_step_tokens": CHUNK, "kv_tokens": KV_TOKENS} | settings))
        self.hit = (length - 1) // BLOCK * BLOCK  # all whole blocks that leave a token to compute
        self.num_floods = 0

    def ask(self, id_, *, cached, lane=Lane.INTERACTIVE, after=lambda: None):
        """The same prompt once more, and something that happens after two of its tokens."""
        driven = self.driven
        driven.ask(replace(self.device.requests[self.length], lane=lane), id_)
        while len(driven.output(id_)) < 2:
            driven.step()
        after()
        driven.run()
        self.device.check_equal(self.length, driven.given(id_))
        assert driven.last(id_).cached_tokens == cached

    def flood(self):
        """A prompt that needs nearly all cells is seated, which costs others theirs, and leaves in its first step."""
        self.num_floods += 1
        id_ = f"flood {self.num_floods}"
        prompt = range(1000, 1000 + self.driven.settings.kv_tokens - 1)
        assert self.driven.add(id_, prompt, SamplingParams(max_tokens=1), salt=id_) is None
        self.driven.step(lambda: self.driven.abort(id_))
        assert self.driven.last(id_).finish_reason is FinishReason.ABORT

    def check(self, *, preemptions, restored):
        """What came of it."""
        self.driven.check_nothing_is_held()
        statistics = self.driven.scheduler.statistics()
        assert (statistics.preemptions, statistics.host.restored_tokens) == (preemptions, restored)


@pytest.mark.parametrize("length", LENGTHS)
def test_an_answer_is_the_same_cold_hot_and_preempted(device, length):
    """Computed in chunks, found in the cache, lost in the middle of the answer and computed again."""
    case = Case(device, length)
    case.ask("cold", cached=0)
    case.ask("hot", cached=case.hit)
    case.ask("preempted", cached=case.hit, lane=Lane.BULK, after=case.flood)
    case.check(preemptions=1, restored=0)


@pytest.mark.parametrize("length", [2 * BLOCK, 2 * BLOCK + 1, 3 * BLOCK - 1, 3 * BLOCK])
def test_an_answer_is_the_same_from_host_memory(device, length):
    """Saved, restored, and restored again in the middle of the answer."""
    case = Case(device, length, host_tokens=512)
    case.ask("cold", cached=0)
    case.flood()
    case.ask("restored", cached=case.hit)
    case.ask("preempted", cached=case.hit, lane=Lane.BULK, after=case.flood)
    computed = length + 1  # when it lost its seat, with a token that was not
    case.check(preemptions=1, restored=case.hit + computed // BLOCK * BLOCK)


def test_an_answer_is_the_same_beside_all_the_others(device):
    """Nine at once, cold and then hot; where holes are filled cells lie out of order, so rounding differs."""
    lengths = [length for length in LENGTHS if (length + 1) % BLOCK <= 2]
    driven = DrivenModel(device, max_seqs=8, mixes_prompts=False)
    for round_ in ("cold", "hot"):
        for length in lengths:
            driven.ask(device.requests[length], f"{round_} {length}")
        driven.run()
        for length in lengths:
            device.check_same(length, driven.given(f"{round_} {length}"))
            assert driven.last(f"{round_} {length}").cached_tokens <= (length - 1) // BLOCK * BLOCK
    assert driven.last("hot 49").cached_tokens == 48
    driven.check_nothing_is_held()
