"""When two greedy runs of a real model count as the same.

Kernels depend on the batch's shape and on where KV cells lie, so logits differ in their last bits and a near-tie may
fall the other way. The rule: at the first difference the bare run's two best logits are less than `MAX_GAP` apart and
ours is its second. Nothing later is compared, since from there on the two continue different texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engines.core.plan import Row, Runner, StepPlan, Truncate

MAX_GAP = 0.5


@dataclass(frozen=True)
class Choice:
    """One greedy token of a bare run; `gap` is how far its logit is above that of `second`."""

    best: int
    second: int
    gap: float


def choice_of(logits: np.ndarray) -> Choice:
    """The two best tokens of one row of logits."""
    second, best = np.argpartition(logits, -2)[-2:][np.argsort(logits[np.argpartition(logits, -2)[-2:]])]
    return Choice(int(best), int(second), float(logits[best] - logits[second]))


def bare_run(runner: Runner, prompt: Sequence[int], num_tokens: int) -> list[Choice]:
    """A greedy continuation of `prompt`, alone on slot 0 of an empty runner, which is empty again afterwards."""
    choices: list[Choice] = []
    fed, start = tuple(prompt), 0
    while len(choices) < num_tokens:
        for at in range(0, len(fed), runner.max_step_tokens):
            chunk = fed[at : at + runner.max_step_tokens]
            is_last = at + len(chunk) == len(fed)
            logits = runner.execute(StepPlan(0, (), (Row(0, start, chunk, num_samples=int(is_last)),)))
            start += len(chunk)
        choices.append(choice_of(logits[0]))
        fed = (choices[-1].best,)
    runner.execute(StepPlan(0, (Truncate(0, 0),), ()))
    return choices


def assert_near_equal(ours: Sequence[int], bare: Sequence[Choice]) -> None:
    """Fail unless `ours` follows `bare` up to its end or up to a near-tie. Lengths may differ only after one."""
    for index, (token, choice) in enumerate(zip(ours, bare, strict=False)):
        if token != choice.best:
            assert choice.gap < MAX_GAP, f"token {index}: {token} instead of {choice}: no near-tie"
            assert token == choice.second, f"token {index}: {token} is not even second in {choice}"
            return
    assert len(ours) == len(bare), f"{len(ours)} tokens, and the bare run has {len(bare)}"
