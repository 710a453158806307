"""What one replica can do: as the operator says, as its engine's model list says, else until it shows it cannot.

Tasks are vLLM's words for what a model does (`generate`, `embed`, `score`) and `transcribe`; surfaces are paths of the
gateway.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from engines.adapters.surfaces import (
    DETOKENIZE,
    EMBEDDINGS,
    FORM_SURFACES,
    RERANK,
    SCORE,
    TOKENIZE,
    TOKENIZE_CHAT,
)
from engines.contract import EngineAdapter
from gateway.request import GENERATING

GENERATE, EMBED, RANK, TRANSCRIBE = "generate", "embed", "score", "transcribe"
TASKS = (GENERATE, EMBED, RANK, TRANSCRIBE)
ASK_AGAIN_S = 60.0  # chosen: what an engine says of its model changes with a restart, which may not be noticed
LACK_S = 60.0  # chosen: how long an endpoint that an engine did not have is not asked for again

_GENERATING = tuple(surface.value for surface in GENERATING)
TASK_OF: dict[str, str | None] = {  # None: a tokenizer is enough
    **dict.fromkeys(_GENERATING, GENERATE),
    EMBEDDINGS: EMBED,
    RERANK: RANK,
    SCORE: RANK,
    TOKENIZE: None,
    TOKENIZE_CHAT: GENERATE,
    DETOKENIZE: None,
    **dict.fromkeys(FORM_SURFACES, TRANSCRIBE),
}


@dataclass(slots=True)
class Abilities:
    """One replica's, in one life of its process. Times are monotonic seconds.

    `declared`: tasks by configuration, which are believed; `told`: by its engine, None where it says nothing.
    `lacking`: surfaces its engine had no endpoint for, and until when that is believed. `has_embedded`: it embedded or
    ranked something, so that a missing chat is no sign of a fault.
    """

    declared: frozenset[str] = frozenset()
    told: frozenset[str] | None = None
    context_tokens: int | None = None
    due_at: float = 0.0
    lacking: dict[str, float] = field(default_factory=dict)
    has_embedded: bool = False

    def tasks(self, adapter: EngineAdapter) -> frozenset[str] | None:
        """What its model does; None where nobody says."""
        return self.declared or (self.told if self.told is not None else adapter.usual_tasks)

    def surfaces(self, adapter: EngineAdapter) -> frozenset[str]:
        """What it serves, as far as is known."""
        tasks = self.tasks(adapter)
        found = (one for one in (*_GENERATING, *adapter.paths) if _is_among(TASK_OF[one], tasks))
        return frozenset(found) - self.lacking.keys()

    def is_due(self, adapter: EngineAdapter, now: float) -> bool:
        """Whether the engine should be asked now."""
        return adapter.tells_tasks and not self.declared and now >= self.due_at

    def note_list(self, body: bytes, model: str, now: float) -> None:
        """What the engine's `/v1/models` says of this model; what is no such list says nothing."""
        self.due_at = now + ASK_AGAIN_S
        found = told_of(body, model)
        self.told, self.context_tokens = found if found is not None else (None, None)

    def note_lack(self, surface: str, now: float) -> None:
        """The engine has no such endpoint."""
        self.lacking[surface] = now + LACK_S

    def expire(self, now: float) -> bool:
        """Try again what was lacking for long enough; whether there was any."""
        over = [surface for surface, until in self.lacking.items() if now >= until]
        for surface in over:
            del self.lacking[surface]
        return bool(over)


class _Card(msgspec.Struct):
    id: str
    tasks: list[str] | None = None
    max_model_len: int | None = None


class _Cards(msgspec.Struct):
    data: list[_Card]


_decode_cards = msgspec.json.Decoder(_Cards).decode


def told_of(body: bytes, model: str) -> tuple[frozenset[str], int | None] | None:
    """(tasks, longest input) of a model as its engine's list has it; None where that says nothing of tasks."""
    try:
        cards = _decode_cards(body).data
    except (msgspec.MsgspecError, RecursionError):
        return None
    card = next((one for one in cards if one.id == model and one.tasks is not None), None)
    return None if card is None else (frozenset(card.tasks or ()) & frozenset(TASKS), card.max_model_len)


def _is_among(task: str | None, tasks: Iterable[str] | None) -> bool:
    return task is None or tasks is None or task in tasks
