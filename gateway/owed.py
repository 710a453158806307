"""What a request owes for: the work that its last attempt really did, as reported or as far as is known."""

from enum import Enum

from msgspec import Struct

from gateway.relay import Relayed
from policies.prices import Work
from routing.decision import RouteDecision


class Owed(Enum):
    """Which part of an attempt's work its tenant pays for."""

    NOTHING = "nothing"  # no engine read the prompt, or the work was thrown away for the sake of others
    DELIVERED = "delivered"  # the engine failed: its prompt and output count if there was any output
    ALL = "all"  # also a prompt that gave no output yet: whoever leaves early gets no discount


class Done(Struct, gc=False):
    """What was done. `is_estimated`: no engine said so, it was predicted or counted on the way."""

    work: Work
    is_estimated: bool


NOTHING = Done(Work(0, 0, 0), is_estimated=False)  # one for all: nobody changes it
PACKED = 2  # chosen: a chunk that holds the text of so many tokens holds several; of less it may be one long word


def done(
    owed: Owed,
    decision: RouteDecision | None,
    relayed: Relayed | None,
    text_tokens: int,
    unseen_tokens: int,
    *,
    is_complete: bool,
    prompt_tokens: int | None = None,
) -> Done:
    """The work of one attempt. Where no engine reports its output: what came of it is counted.

    An engine is believed: prompt tokens that it does not report as cached cost as computed ones. `text_tokens`: what
    the text that came is worth; `unseen_tokens`: output that could not be seen, counted if nothing came.
    `prompt_tokens`: what the prompt is by its tenant's own texts, None: as it was routed.
    """
    if decision is None or relayed is None or owed is Owed.NOTHING:
        return NOTHING
    if owed is Owed.DELIVERED and relayed.first_content_at is None:
        return NOTHING
    usage = relayed.usage
    if usage is None:
        output = _counted(relayed.num_chunks, text_tokens) or unseen_tokens
        prompt, cached = decision.prompt_tokens, decision.hit_tokens
        if prompt_tokens is not None:  # what is cached is as large a part of it as routing believed
            prompt, cached = prompt_tokens, cached * prompt_tokens // max(1, prompt)
        return Done(Work(prompt, cached, output), is_estimated=True)
    output = usage.completion_tokens if is_complete else max(usage.completion_tokens, relayed.num_chunks)
    return Done(Work(usage.prompt_tokens, usage.cached_tokens or 0, output), is_estimated=not is_complete)


def _counted(num_chunks: int, text_tokens: int) -> int:
    """Output tokens of what came. Most engines send a chunk a token, which is exact; some send many in one."""
    return text_tokens if text_tokens >= PACKED * num_chunks else num_chunks
