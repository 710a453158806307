"""What the path of a request is made of: the parts of the process, and one request on its way."""

from collections.abc import Callable
from dataclasses import dataclass, field

from cache_affinity.diagnosis import PrefixDiagnosis
from engines.contract import Headers
from gateway.admission import Dispatch
from gateway.answer import ClientAnswer
from gateway.auth import Directory
from gateway.bulk_runs import BulkRuns
from gateway.conversations import Conversations
from gateway.fleet import Fleet
from gateway.gossip import Gossip
from gateway.isolation import CacheIsolation
from gateway.kv_streams import KvStreams
from gateway.ledger import Journal
from gateway.models import ModelTable
from gateway.peers import Peers
from gateway.prompt_tokens import PromptTokens
from gateway.recorder import Recorder
from gateway.response_cache.answers import KeptAnswers
from gateway.response_cache.recording import Recording
from gateway.settings import Settings
from gateway.sink import ClientSink, Incoming
from gateway.story import Story
from gateway.traffic import Traffic
from policies.output_estimate import OutputEstimates
from policies.quota import Quotas
from policies.retry import RetryBudget
from routing.router import Router
from routing.seat_control import SeatControl

MODEL_HEADER = b"x-warmlane-model"


@dataclass(slots=True)
class Parts:
    """What the lifecycle works with; `app.py` makes them. `clock`: monotonic seconds, `unix`: Unix seconds.

    `settings`: those in force; a reload puts others in their place, so ask at every use. What is in `models`,
    `traffic` and `dispatch` follows it. The rest never changes.

    `peers`: the other gateways, None where this one shares nothing; `gossip`: what is told between them, if anything.
    """

    settings: Settings
    directory: Directory
    models: ModelTable
    traffic: Traffic
    quotas: Quotas
    router: Router
    dispatch: Dispatch
    fleet: Fleet
    kv_streams: KvStreams
    tokens: PromptTokens
    isolation: CacheIsolation
    retries: RetryBudget
    outputs: OutputEstimates
    seats: SeatControl
    bulk_runs: BulkRuns
    prefixes: PrefixDiagnosis
    recorder: Recorder
    journal: Journal
    conversations: Conversations
    clock: Callable[[], float]
    unix: Callable[[], float]
    peers: Peers | None = None
    gossip: Gossip | None = None
    kept_answers: KeptAnswers = field(default_factory=KeptAnswers)


@dataclass(slots=True)
class Call:
    """One request on its way: what came, where the answer goes, and what has happened so far.

    `recording`: writes down what its engine says, None for nobody.
    """

    incoming: Incoming
    sink: ClientSink
    answer: ClientAnswer
    headers: Headers
    story: Story
    deadline: float | None = None
    traceparent: str | None = None
    recording: Recording | None = None

    def is_late(self, now: float) -> bool:
        """Whether the client's own deadline has passed."""
        return self.deadline is not None and now >= self.deadline

    def tell_model(self, name: str | None) -> None:
        """Another model than the one that was named answers: the client is told, if its headers are not out yet."""
        self.headers[:] = [(key, value) for key, value in self.headers if key != MODEL_HEADER]
        if name is not None:
            self.headers.append((MODEL_HEADER, name.encode()))
