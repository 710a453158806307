"""How many drafts a step takes along."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from engines.core.draft_room import DraftRoom
from engines.core.latency_guard import LatencyGuard, LatencySettings, StepCounts
from engines.core.sequence import SamplingParams
from engines.step_cost import StepCost
from policies.lane import Lane
from tests.engines.core.driven import Driven, words

MEMORY_BOUND = StepCost(base_s=0.010, per_row_s=0.001, per_prefill_token_s=0.0001)
COMPUTE_BOUND = StepCost(base_s=0.0, per_row_s=0.010, per_prefill_token_s=0.010)
ENDLESS = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, logit_bias=((words(0)[0], 50.0),))


def room(cost, rows=1, limit_s=math.inf, num_tokens=32, **fields):
    return DraftRoom(LatencyGuard(LatencySettings(), cost), StepCounts(rows), limit_s, num_tokens, **fields)


def taken(draft_room, chance):
    count = 0
    while draft_room.take(chance ** (count + 1)):
        count += 1
    return count


def test_drafts_go_in_while_they_make_more_tokens_a_second():
    """Likely ones are worth a row beside a step's fixed cost; where rows are all the cost only certain ones are."""
    assert taken(room(MEMORY_BOUND), 0.9) > taken(room(MEMORY_BOUND), 0.5) >= 2
    assert taken(room(MEMORY_BOUND), 0.05) == 0
    assert taken(room(COMPUTE_BOUND), 0.9) == 0
    assert taken(room(MEMORY_BOUND, rows=60), 0.9) <= 1


def test_drafts_keep_within_the_steps_time_and_tokens():
    """Who waits for the step waits no longer than was promised."""
    assert taken(room(MEMORY_BOUND, limit_s=0.0141), 1.0) == 3
    assert taken(room(MEMORY_BOUND, num_tokens=2), 1.0) == 2
    assert taken(room(MEMORY_BOUND, num_tokens=0), 1.0) == 0


def test_a_trial_ignores_worth_and_nothing_else():
    """Else what is believed too dear could never be found cheap."""
    assert taken(room(COMPUTE_BOUND, num_tokens=3, is_trial=True), 0.5) == 3
    assert taken(room(COMPUTE_BOUND, limit_s=0.015, is_trial=True), 0.5) == 0


def drafted(cost, lanes, latency=None, **fields):
    """Drafts in each step while requests of these lanes all repeat themselves."""
    driven = Driven(cost=cost, max_drafts=8, latency=latency or LatencySettings(), kv_tokens=1024, **fields)
    for index, lane in enumerate(lanes):
        driven.add(str(index), words(0, 0, 0, 0, index), ENDLESS, lane=lane)
    driven.run()
    return driven, [sum(len(row.drafts) for row in plan.rows) for plan in driven.plans]


def test_one_alone_is_drafted_for_generously():
    """Nobody else waits for the step."""
    _, numbers = drafted(MEMORY_BOUND, [Lane.INTERACTIVE])
    assert max(numbers) == 8


def test_beside_others_a_step_grows_by_half_at_most():
    """Their gap is what one's drafts cost."""
    driven, numbers = drafted(MEMORY_BOUND, [Lane.INTERACTIVE] * 3)
    assert max(numbers) > 0
    decodes = [plan for plan in driven.plans if len(plan.rows) == 3 and plan.num_prefill_tokens == 0]
    assert decodes
    assert all(MEMORY_BOUND.seconds(plan.num_decode_rows, 0) <= 1.5 * MEMORY_BOUND.seconds(3, 0) for plan in decodes)


def test_drafts_keep_to_the_objective():
    """With a promised gap that is the bound, alone or not."""
    driven, numbers = drafted(MEMORY_BOUND, [Lane.INTERACTIVE], LatencySettings(itl_p95_s=0.0135))
    assert max(numbers) == 2
    assert all(MEMORY_BOUND.seconds(plan.num_decode_rows, 0) <= 0.0135 for plan in driven.plans[1:])


def test_bulks_drafts_keep_to_what_bulk_may_add():
    """They are rows of bulk like others."""
    driven, numbers = drafted(MEMORY_BOUND, [Lane.INTERACTIVE, Lane.BULK], LatencySettings(itl_p95_s=0.0145))
    assert max(numbers) > 0
    both = [outlook for outlook in driven.outlooks if set(outlook.lanes) == {Lane.INTERACTIVE, Lane.BULK}]
    assert all(outlook.modelled_s <= 0.0145 + 1e-9 for outlook in both)


def test_where_rows_are_the_cost_drafts_are_only_tried():
    """Compute-bound batches gain nothing; a few drafts, ever more rarely, show whether that is still so."""
    driven = Driven(cost=COMPUTE_BOUND, max_drafts=8, kv_tokens=2048, context_tokens=2048)
    driven.add("r", words(0, 0, 0, 0), replace(ENDLESS, max_tokens=600))
    driven.run()
    trials = [plan.number for plan in driven.plans if any(row.drafts for row in plan.rows)]
    gaps = [later - earlier for earlier, later in pairwise(trials)]
    assert gaps == [32, 64, 128, 256]
    assert max(len(row.drafts) for plan in driven.plans for row in plan.rows) == 2


def test_drafts_come_back_when_rows_become_cheap():
    """What was too dear in one batch is worth it in the next."""
    driven = Driven(cost=COMPUTE_BOUND, max_drafts=8, kv_tokens=1024)
    driven.add("r", words(0, 0, 0, 0), ENDLESS)
    for _ in range(5):
        driven.step()
    driven.cost = MEMORY_BOUND
    driven.step()
    assert len(driven.plans[-1].rows[0].drafts) > 2


def test_all_drafts_of_a_step_are_bounded(driven):
    """Each costs the runner a row of logits."""
    engine = driven(max_drafts=8, max_step_drafts=5, kv_tokens=1024)
    for index in range(4):
        engine.add(str(index), words(0, 0, 0, 0, index), ENDLESS)
    engine.run()
    numbers = [sum(len(row.drafts) for row in plan.rows) for plan in engine.plans]
    assert max(numbers) == 5


def test_drafts_cost_nobody_a_seat(driven):
    """Without free blocks there are none; others' blocks are not taken for a guess."""
    engine = driven(max_drafts=8, kv_tokens=64, block_size=4, context_tokens=64)
    engine.add("r", words(0, 0, 0, 0), ENDLESS)
    engine.run()
    assert engine.scheduler.statistics().preemptions == 0
    assert len(engine.output("r")) == 60


@pytest.mark.parametrize("field", ["max_drafts", "max_step_drafts"])
def test_negative_bounds_are_refused(field):
    """A setting that makes no sense is said at start."""
    with pytest.raises(ValueError, match="max_drafts"):
        Driven(**{field: -1})
