"""What the bare library answers, without our rules, and when ours counts as the same.

Measured with llama.cpp of the wheel: in steps of less than 64 tokens logits depend neither on the step's shape nor on
who else is in it, to the bit, as long as each sequence's cells lie in the order of their positions (they do not where
holes that others left were filled). There everything must be equal to the bit; elsewhere rounding differs, and a near
tie may fall the other way. Whether the library of this machine is so is asked of it: `Bare.is_exact`.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from engines.core.admission import SchedulerSettings, open_sequence
from engines.core.decoding import decode
from engines.core.plan import Row, StepPlan
from engines.core.sampling import SamplingRow
from engines.core.sequence import GenerateRequest, SamplingParams
from engines.gguf.model import GgufModel
from engines.gguf.runner import GgufRunner, RunnerSettings
from tests.engines.core.driven import masks_of
from tests.engines.near_tie import MAX_GAP

_MAX_NOISE = 0.12  # of a row's spread; measured: rounding up to 0.07, sixteen first tokens missing 0.16


@dataclass
class Answer:
    """What a request gets: its tokens, and the logits of each."""

    tokens: list[int]
    logits: list[np.ndarray]


class Bare:
    """One sequence on slot 0 of a runner, which is emptied before: whoever has rules on it must be over.

    `is_exact`: whether here the library's logits do not depend on how a prompt is cut, to the bit.
    """

    def __init__(self, runner: GgufRunner, model: GgufModel):
        self._runner = runner
        self.settings = SchedulerSettings(
            1, runner.max_step_tokens, model.context_tokens, runner.kv_tokens, model.eos_ids
        )
        prompt = tuple(model.encode("Seven clocks told other times. " * 20, special=False)[: runner.max_step_tokens])
        probe = GenerateRequest("probe", prompt, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
        pairs = zip(self.answer(probe).logits, self.answer(probe, chunk=7).logits, strict=True)
        self.is_exact = all(np.array_equal(one, other) for one, other in pairs)

    def answer(self, request: GenerateRequest, chunk: int | None = None) -> Answer:
        """What the library and the sampler make of a request, its prompt in pieces of `chunk` tokens."""
        self._runner.clear()
        answer, tokens, start = Answer([], []), list(request.prompt), 0
        chunk = chunk or self._runner.max_step_tokens
        while True:
            while start < len(tokens):
                row = Row(0, start, tuple(tokens[start : start + chunk]), num_samples=1)
                logits = self._runner.execute(StepPlan(0, (), (row,)))
                start += len(row.tokens)
            token = resampled(request, answer.tokens, logits[0], self.settings)
            tokens.append(token)
            answer.tokens.append(token)
            answer.logits.append(logits[0].copy())
            if self._is_over(request, answer.tokens):
                return answer

    def _is_over(self, request, output):
        sampling = request.sampling
        end_ids = sampling.stop_token_ids | (frozenset() if sampling.ignore_eos else self.settings.eos_ids)
        if output[-1] in end_ids or len(output) == sampling.max_tokens:
            return True
        return request.grammar is not None and _state_after(request.grammar, output).is_finished


def resampled(request: GenerateRequest, output: list[int], logits: np.ndarray, settings: SchedulerSettings) -> int:
    """The token behind `output`, by the request's parameters and seed alone: nothing is remembered."""
    sequence = open_sequence(request, settings, 0.0, 1)
    sequence.tokens.extend(output)
    if request.grammar is not None:
        sequence.grammar = _state_after(request.grammar, output)
    rows = [SamplingRow(sequence)]
    ((sampled,),) = decode(logits[np.newaxis], rows, masks_of(rows, len(logits)), settings.eos_ids)
    return sampled.token


def _state_after(grammar, output):
    state = grammar.start()
    for token in output:
        state.accept(token)
    return state


@dataclass
class Device:
    """A runner that tests share, requests by name, and what the library alone answers to each."""

    model: GgufModel
    runner: GgufRunner
    bare: Bare
    requests: Mapping[str, GenerateRequest]
    alone: dict[str, Answer]

    def check_equal(self, name: str, ours: Answer):
        """Fail unless tokens and all logits are those of the library alone: to the bit, where it is exact."""
        alone = self.alone[name]
        if not self.bare.is_exact:
            self.check_same(name, ours)
            return
        assert ours.tokens == alone.tokens
        for index, (one, other) in enumerate(zip(ours.logits, alone.logits, strict=True)):
            assert np.array_equal(one, other), f"the logits of token {index} differ by {_noise(one, other):.4f}"

    def check_same(self, name: str, ours: Answer):
        """Fail if more than rounding makes a difference.

        Up to the first other token logits must differ by rounding only, and each token must be what the request's own
        rules make of them. Where those are just to take the best one, that and ours must be nearly tied.
        """
        request, alone = self.requests[name], self.alone[name]
        for index, (token, expected) in enumerate(zip(ours.tokens, alone.tokens, strict=False)):
            found = _noise(ours.logits[index], alone.logits[index])
            assert found < _MAX_NOISE, f"the logits of token {index} differ by {found:.3f} of their spread"
            assert token == resampled(request, ours.tokens[:index], ours.logits[index], self.bare.settings)
            if token != expected:
                assert not _takes_the_best(request) or _gap(alone.logits[index], token) < MAX_GAP, "no near-tie"
                return
        assert len(ours.tokens) == len(alone.tokens)

    def check_tokens(self, name: str, tokens: list[int]):
        """The same where logits are not known, of a request that takes the best token."""
        for index, (token, expected) in enumerate(zip(tokens, self.alone[name].tokens, strict=False)):
            if token != expected:
                assert _gap(self.alone[name].logits[index], token) < MAX_GAP, "no near-tie"
                return
        assert len(tokens) == len(self.alone[name].tokens)


@contextlib.contextmanager
def device_of(
    model: GgufModel, requests: Mapping[str, GenerateRequest], *, kv_tokens=512, max_step_tokens=48
) -> Iterator[Device]:
    """A device with slots for twelve, all of whose steps are short unless told otherwise."""
    settings = RunnerSettings(12, kv_tokens, max_step_tokens, 1, 1, num_drafts=16)
    with contextlib.closing(GgufRunner(model, settings)) as runner:
        bare = Bare(runner, model)
        yield Device(model, runner, bare, requests, {name: bare.answer(each) for name, each in requests.items()})


def _takes_the_best(request: GenerateRequest) -> bool:
    sampling = request.sampling
    has_rules = sampling.frequency_penalty or sampling.repetition_penalty != 1 or sampling.logit_bias
    return sampling.temperature == 0 and request.grammar is None and not has_rules


def _gap(logits: np.ndarray, token: int) -> float:
    """How far the best one leads. Three may be tied: then ours need not be the second."""
    return float(logits.max() - logits[token])


def _noise(one: np.ndarray, other: np.ndarray) -> float:
    """How far two rows of logits are from each other, by the spread of one."""
    return float((one - other).std() / other.std())
