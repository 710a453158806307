"""How the tokens of one step are shared among the seated sequences. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from engines.core.plan import Row
from engines.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Grant:
    """`num_tokens` of a sequence's uncomputed tokens are computed in this step."""

    sequence: Sequence
    num_tokens: int

    def row(self) -> Row:
        """The grant as the runner sees it, before anything of it is computed."""
        sequence, start = self.sequence, self.sequence.num_computed
        assert sequence.slot is not None, f"sequence {sequence.id} is in a step without a slot"
        return Row(
            slot=sequence.slot,
            start=start,
            tokens=tuple(sequence.tokens[start : start + self.num_tokens]),
            samples=self.num_tokens == sequence.num_uncomputed,
            blocks=tuple(sequence.blocks),
        )


def share_budget(seated: Iterable[Sequence], budget: int) -> list[Grant]:
    """Grants to seated sequences in their order: first a token for each that decodes, then prefill remainders.

    There is no prefill phase: a sequence's computed tokens catch up with its tokens, as far as the budget goes.
    NOTE: this is where a lane's sequences are left out of a step; today every seated one takes part.
    """
    seated = list(seated)
    grants = [Grant(sequence, 1) for sequence in seated if sequence.is_decoding]
    left = budget - len(grants)
    assert left >= 0, "more decoding sequences than tokens in a step"
    for sequence in seated:
        if not sequence.is_decoding and left > 0:
            num_tokens = min(sequence.num_uncomputed, left)
            grants.append(Grant(sequence, num_tokens))
            left -= num_tokens
    return grants
