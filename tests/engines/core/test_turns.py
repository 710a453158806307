"""Urgent prompts and decodes that take turns: one kind a step."""

from engines.core.latency_guard import LatencySettings
from engines.step_cost import StepCost
from policies.lane import Lane
from tests.engines.core.test_lanes import add, step

SLOW = StepCost(base_s=0.006, per_row_s=0.004, per_prefill_token_s=0.0025)
SIZES = {"num_slots": 16, "max_seqs": 8, "max_step_tokens": 256, "kv_tokens": 4096, "context_tokens": 1024}
ROOMY = SIZES | {"mixes_prompts": False, "cost": SLOW}


def test_prompts_and_decodes_take_turns(driven):
    """A newcomer's prompt goes on in every second step, the others get a token in between."""
    engine = driven(**ROOMY)
    add(engine, "interactive-streams")
    engine.step()
    engine.step()
    add(engine, "interactive-newcomer", 200)
    assert step(engine) == [("interactive-newcomer", 96)]  # (250 - 10) ms
    assert step(engine) == [("interactive-streams", 1)]
    assert step(engine) == [("interactive-newcomer", 96)]
    assert step(engine) == [("interactive-streams", 1)]
    assert step(engine) == [("interactive-newcomer", 8)]
    assert step(engine) == [("interactive-streams", 1), ("interactive-newcomer", 1)]


def test_nobody_rests_where_only_one_kind_is_there(driven):
    """Prompts alone take whole steps, decodes alone every step."""
    engine = driven(**ROOMY)
    for number in range(2):
        add(engine, f"interactive-{number}", 140 if number else 200)
    assert step(engine) == [("interactive-0", 200), ("interactive-1", 56)]
    assert step(engine) == [("interactive-1", 84)]
    both = [("interactive-0", 1), ("interactive-1", 1)]
    assert [step(engine), step(engine)] == [both, both]


def test_a_crowd_that_was_overtaken_gets_longer_steps_the_larger_it_is(driven):
    """Those that came together begin soon after one another; the first does not run ahead, nor stand still for long."""
    engine = driven(**ROOMY | {"max_step_tokens": 512})
    for number in range(8):
        add(engine, f"interactive-{number}", 300 if number else 100)
    assert step(engine) == [("interactive-0", 100), ("interactive-1", 300), ("interactive-2", 112)]
    assert step(engine) == [("interactive-2", 188), ("interactive-3", 6)]  # (500 - 14) ms
    assert step(engine) == [("interactive-0", 1), ("interactive-1", 1), ("interactive-2", 1)]
    assert step(engine) == [("interactive-3", 179)]  # an eighth of 3.7 s, less 18 ms
    assert len(step(engine)) == 3


def test_who_waits_for_a_seat_counts_as_far_as_there_are_seats(driven):
    """Prompts that cannot be read now do not make others wait longer."""
    engine = driven(**ROOMY | {"max_step_tokens": 512, "max_seqs": 3})
    add(engine, "interactive-first", 100)
    engine.step(lambda: None)
    for number in range(8):
        add(engine, f"interactive-{number}", 500)
    assert step(engine) == [("interactive-0", 121)]  # an eighth of 2.5 s, less 10 ms


def test_who_came_while_the_others_prompts_were_computed_was_overtaken_too(driven):
    """It was taken in after that step, but had come before the step's first tokens."""
    engine = driven(**ROOMY | {"max_step_tokens": 512})
    add(engine, "interactive-first", 100)
    engine.step(lambda: None)
    add(engine, "interactive-second", 900)
    assert step(engine) == [("interactive-second", 108)]  # an eighth of 2.3 s, less 10 ms


def test_the_operators_gap_holds_for_both_steps_together(driven):
    """`itl_p95_s` is what those that decode wait, whoever overtook whom."""
    engine = driven(**ROOMY, latency=LatencySettings(itl_p95_s=0.16))
    add(engine, "interactive-streams")
    engine.step()
    add(engine, "interactive-newcomer", 200)
    assert step(engine) == [("interactive-newcomer", 60)]  # (160 - 10) ms


def test_bulk_stays_out_while_a_prompt_waits_for_its_turn(driven):
    """What it took of the others' step would be added to a TTFT."""
    engine = driven(**ROOMY, latency=LatencySettings(itl_p95_s=0.5, bulk_patience_s=1e9))
    add(engine, "interactive-streams")
    add(engine, "bulk-rides-along")
    engine.step()
    assert {name for name, _ in step(engine)} == {"interactive-streams", "bulk-rides-along"}
    add(engine, "interactive-newcomer", 250)
    assert [name for name, _ in step(engine)] == ["interactive-newcomer"]
    assert [name for name, _ in step(engine)] == ["interactive-streams"]


def test_those_that_decode_go_on_while_a_newcomer_finds_no_room(driven):
    """A turn that nobody can take is no turn."""
    engine = driven(**ROOMY | {"kv_tokens": 160})
    add(engine, "interactive-streams", 100, max_tokens=40)
    engine.step()
    add(engine, "interactive-large", 90, max_tokens=4)
    assert [step(engine), step(engine)] == [[("interactive-streams", 1)]] * 2


def test_bulk_prompts_still_ride_beside_urgent_decodes(driven):
    """Turns are the urgent ones'; bulk goes by the objective."""
    engine = driven(**ROOMY, latency=LatencySettings(itl_p95_s=0.1))
    add(engine, "interactive-streams")
    engine.step()
    add(engine, "bulk-prompt", 200)
    names = [name for name, _ in step(engine)]
    assert names == ["interactive-streams", "bulk-prompt"]
    assert engine.outlooks[-1].lanes == (Lane.INTERACTIVE, Lane.BULK)
