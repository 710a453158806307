"""What is kept of answers so that a conversation can be gone on with by an id, and the contract of whoever keeps it.

Bounded for each project by number and bytes: the oldest go first. Each holds all of its conversation, so that what
goes is only ever the way back to an earlier turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """`content`: read by nobody but whoever wrote it. `expires_at`: Unix seconds."""

    project_id: str
    id: str
    expires_at: float
    content: bytes


@dataclass(frozen=True, slots=True)
class KeptBound:
    """The most that is kept of one project."""

    number: int
    total_bytes: int


class KeptResponses(Protocol):
    """A part of `policies.store.Store`. Raises no revision and writes no audit log. Any method may raise `StoreError`.

    A project's are nobody else's: whoever asks for another's is told what one is told of none. They go with it.
    """

    async def keep_responses(self, responses: Sequence[KeptResponse], bound: KeptBound) -> None:
        """Keep these, the later ones as the younger; the oldest of a project go until it is within the bound.

        Those of a project that is gone are passed over. One of an id that is there takes its place.
        """
        ...

    async def kept_response(self, project_id: str, response_id: str) -> bytes | None:
        """Its content; None if there is none, or its time is over."""
        ...

    async def drop_response(self, project_id: str, response_id: str) -> bool:
        """Whether there was one, which is now gone."""
        ...

    async def expire_responses(self) -> None:
        """Drop all whose time is over, in every project."""
        ...
