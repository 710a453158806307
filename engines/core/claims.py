"""Which blocks are just being computed, and by whom, so that others wait for them instead of computing them too. Pure.

A claim ends when its block is published or its owner leaves its seat; an owner gets tokens in every step that has any
over. Hence nobody waits in vain.
"""

from collections.abc import Iterable

from engines.core.sequence import Sequence


class PrefixClaims:
    """Names of full blocks that seated sequences are about to compute."""

    def __init__(self) -> None:
        self._owners: dict[bytes, Sequence] = {}

    def __repr__(self) -> str:
        return f"<PrefixClaims blocks={len(self._owners)}>"

    def claim(self, sequence: Sequence) -> None:
        """The sequence computes those of its blocks that it has not published; a more urgent owner stays the owner."""
        for digest in sequence.hashes[sequence.num_published :]:
            owner = self._owners.get(digest)
            if owner is None or owner.request.lane.rank > sequence.request.lane.rank:
                self._owners[digest] = sequence

    def end(self, sequence: Sequence, hashes: Iterable[bytes]) -> None:
        """The sequence does not compute these any more: they are there, or it has left."""
        for digest in hashes:
            if self._owners.get(digest) is sequence:
                del self._owners[digest]

    def must_wait(self, sequence: Sequence, digest: bytes | None) -> bool:
        """Whether a sequence of no lower lane is computing this block. Waiting for a lower lane could take long."""
        owner = self._owners.get(digest) if digest is not None else None
        return owner is not None and owner.request.lane.rank <= sequence.request.lane.rank

    def check_integrity(self, seated: Iterable[Sequence]) -> None:
        """Raise AssertionError unless every owner is among these."""
        ids = {id(sequence) for sequence in seated}
        assert all(id(owner) in ids for owner in self._owners.values()), "a claim outlives its owner's seat"
