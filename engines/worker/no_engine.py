"""What stands in an engine's place where a model only embeds or ranks: nothing runs, nothing is ever open."""

from engines.core.admission import Refusal, RefusalReason
from engines.core.inbox import Deliver
from engines.core.load import EngineLoad
from engines.core.sequence import GenerateRequest


class NoEngine:
    """The part of `Engine` that a service uses. `load`: as an engine's that has nothing to do."""

    num_open = 0

    def __init__(self) -> None:
        self._is_stopped = False

    def __repr__(self) -> str:
        return "<NoEngine>"

    def start(self) -> None:
        """Nothing to start."""

    def submit(self, request: GenerateRequest, deliver: Deliver) -> Refusal | None:  # noqa: ARG002
        """Refuse: this model generates nothing."""
        return Refusal(RefusalReason.STOPPING, "This model generates no text.")

    def is_full(self) -> bool:
        """Never: what it cannot do is refused for that reason."""
        return False

    def abort(self, request_id: str) -> None:
        """Nothing is open."""

    def load(self) -> EngineLoad:
        """Idle."""
        return EngineLoad()

    def is_healthy(self) -> bool:
        """Until it is stopped."""
        return not self._is_stopped

    def drain(self) -> None:
        """Nothing is open."""

    def stop(self, grace_s: float = 0.0) -> bool:  # noqa: ARG002
        """Nothing to end. May be repeated."""
        self._is_stopped = True
        return True
