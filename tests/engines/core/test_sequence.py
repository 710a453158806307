"""The state of a sequence moves by the table and not otherwise."""

import itertools

import pytest

from engines.core.sequence import TRANSITIONS, GenerateRequest, IllegalTransition, Sequence, SequenceState


def sequence(state=SequenceState.WAITING, output=()):
    made = Sequence(
        GenerateRequest("r", (1, 2, 3)), max_length=9, seed=0, order=(0, 0, 0.0, 1), tokens=[1, 2, 3, *output]
    )
    made.state = state
    return made


@pytest.mark.parametrize(("old", "new"), list(itertools.product(SequenceState, SequenceState)))
def test_every_move_is_legal_or_refused(old, new):
    """The table is walked completely, so that no state can be reached by accident."""
    moving = sequence(old)
    if new in TRANSITIONS[old]:
        moving.move(new)
        assert moving.state is new
    else:
        with pytest.raises(IllegalTransition, match=f"{old.value} to {new.value}"):
            moving.move(new)
        assert moving.state is old


def test_every_state_has_a_row_and_only_the_end_is_final():
    """A state added later without a row would be a KeyError in production."""
    assert set(TRANSITIONS) == set(SequenceState)
    assert [state for state, nexts in TRANSITIONS.items() if not nexts] == [SequenceState.FINISHED]


def test_counts_follow_tokens_and_computed():
    """Decoding is nothing but one missing token."""
    moving = sequence(output=(4,))
    assert (moving.num_prompt, moving.num_output, moving.num_uncomputed, moving.is_decoding) == (3, 1, 4, False)
    moving.num_computed = 3
    assert moving.is_decoding
