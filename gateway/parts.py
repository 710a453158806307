"""What the path of a request is made of: the parts of the process, and one request on its way."""

from collections.abc import Callable
from dataclasses import dataclass

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
from gateway.settings import Settings
from gateway.sink import ClientSink, Incoming
from gateway.story import Story
from policies.output_estimate import OutputEstimates
from policies.quota import Quotas
from policies.retry import RetryBudget
from routing.router import Router
from routing.seat_control import SeatControl


@dataclass(slots=True)
class Parts:
    """What the lifecycle works with; `app.py` makes them. `clock`: monotonic seconds, `unix`: Unix seconds.

    `settings`: those in force; a reload puts others in their place, so ask at every use. What is in `models` and
    `dispatch` follows it. The rest never changes.

    `peers`: the other gateways, None where this one shares nothing; `gossip`: what is told between them, if anything.
    """

    settings: Settings
    directory: Directory
    models: ModelTable
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


@dataclass(slots=True)
class Call:
    """One request on its way: what came, where the answer goes, and what has happened so far."""

    incoming: Incoming
    sink: ClientSink
    answer: ClientAnswer
    headers: Headers
    story: Story
    deadline: float | None = None
    traceparent: str | None = None
