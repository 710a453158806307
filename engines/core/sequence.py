"""One request inside a worker: what it asks for, how far it is, and the only function that moves it between states.

Knows tokens, never text; no clock, no device. A `Sequence` is changed by the scheduler alone.
"""

from dataclasses import dataclass, field
from enum import Enum

from engines.core.grammar import Grammar, GrammarState
from engines.core.speculation import Speculation
from policies.lane import Lane


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. Ranges are the worker's to check; here every value is believed.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 keep every token. `seed` None: derived from the
    request id. `max_tokens` None: up to the context. `min_tokens`: no end-of-sequence or stop token before that many.
    `stop_token_ids` end the sequence besides the model's own end tokens (which `ignore_eos` switches off).
    `logprobs` None: none; n: the chosen token's and the n best. `logit_bias`: added to the logits of those tokens.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def takes_best(self) -> bool:
        """Whether the likeliest token is always the next one, and no more is asked of the logits."""
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty - 1)
        is_plain = self.temperature == 0 and self.logprobs is None and self.min_tokens == 0
        return is_plain and not self.logit_bias and not any(penalties)


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What the API half hands to the engine.

    `id` is unique among open requests. `prompt` is not empty. `priority`: lower is served first, inside its lane.
    `salt` separates caches: sequences of different salts never share a KV cell. `arrival`: monotonic seconds.
    `grammar`: what the output must follow; where it can go no further, the sequence ends.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    lane: Lane = Lane.INTERACTIVE
    priority: int = 0
    salt: str = ""
    arrival: float = 0.0
    grammar: Grammar | None = None

    @property
    def is_urgent(self) -> bool:
        """Whether its lane is above bulk."""
        return self.lane is not Lane.BULK


class FinishReason(Enum):
    """Why a sequence ended.

    STOP: an end or stop token, or the end of its grammar. LENGTH: `max_tokens` or the context is used up.
    """

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithms from the raw logits. `top`: (token, logprob), best first; it need not hold `token`."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SequenceDelta:
    """What one step brought to one sequence. The last one of a sequence, and only that, has a `finish_reason`.

    `token_ids`: new output tokens, several where drafts held. An end or stop token that ended the sequence is the last
    of them and is repeated in `stop_token`, so that it is counted but its text can be left out. `logprobs`: one a token
    if asked for, else None.
    `cached_tokens`: prompt tokens taken from the cache at first admission (0 until then); recomputing after a
    preemption does not change it. `num_output`: output tokens so far, these included. `error`: a sentence, with ERROR.
    """

    request_id: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    num_output: int
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_token: int | None = None
    error: str = ""


class SequenceState(Enum):
    """Where a sequence is. The state names the collection it sits in: the waiting queue, the seats, or none."""

    WAITING = "waiting"  # never had a seat
    RUNNING = "running"  # has a seat, a slot and blocks
    PREEMPTED = "preempted"  # lost its seat and waits again; its output so far is kept
    FINISHED = "finished"


TRANSITIONS: dict[SequenceState, frozenset[SequenceState]] = {
    SequenceState.WAITING: frozenset({SequenceState.RUNNING, SequenceState.FINISHED}),
    SequenceState.RUNNING: frozenset({SequenceState.PREEMPTED, SequenceState.FINISHED}),
    SequenceState.PREEMPTED: frozenset({SequenceState.RUNNING, SequenceState.FINISHED}),
    SequenceState.FINISHED: frozenset(),
}


class IllegalTransition(Exception):
    """A bug of ours: a sequence was moved where the table does not lead."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way. `tokens`: prompt, then output. Changed by the scheduler and its memory only.

    `num_computed` <= len(tokens): leading tokens whose KV exists (or is shared). `blocks` cover at least those;
    `hashes` are the chained digests of the leading full blocks of `tokens`; the first `num_published` blocks may be
    hit by others. `max_length`: tokens at which it ends with LENGTH. `seed`: resolved. `order`: smaller goes first;
    its head is the lane's rank. `last_step`: number of the last step it had a row in. `grammar`: as far as the output
    has come in it. `speculation`: once it has been drafted for. `num_restored`: of the tokens that it hit when it was
    seated last, those that came from host memory. `added_step`: the last step planned before it was there;
    `first_step`: the one that brought its first token, 0 until then. `takes_best`: the likeliest token is always its
    next one, and no more is asked of the logits.
    """

    request: GenerateRequest
    max_length: int
    seed: int
    order: tuple[int, int, float, int]
    tokens: list[int] = field(default_factory=list)
    state: SequenceState = SequenceState.WAITING
    slot: int | None = None
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    num_computed: int = 0
    num_published: int = 0
    num_restored: int = 0
    num_preemptions: int = 0
    last_step: int = 0
    added_step: int = 0
    first_step: int = 0
    takes_best: bool = False
    cached_tokens: int | None = None
    is_in_step: bool = False
    is_aborting: bool = False
    awaited_hash: bytes | None = None
    grammar: GrammarState | None = None
    speculation: Speculation | None = None

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def num_prompt(self) -> int:
        """Prompt tokens."""
        return len(self.request.prompt)

    @property
    def num_output(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose KV is still to be computed: 1 while decoding, more while prefilling."""
        return len(self.tokens) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Whether one token is all that is missing, so that the next step yields a new one."""
        return len(self.tokens) - self.num_computed == 1

    def move(self, state: SequenceState) -> None:
        """Change the state; raises `IllegalTransition` where the table has no such move."""
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"sequence {self.id}: {self.state.value} to {state.value}")
        self.state = state
