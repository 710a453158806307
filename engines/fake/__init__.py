"""The fake engine, and the rules of our engines for whoever runs them without a device.

The one door to `engines.core` for the gateway's simulator: the scheduler with what it takes and gives.
"""

from engines.core.admission import SchedulerSettings
from engines.core.holders import SlotHolders
from engines.core.latency_guard import LatencyGuard, LatencySettings, StepCounts
from engines.core.plan import StepPlan
from engines.core.sampling import Sampled
from engines.core.scheduler import Scheduler
from engines.core.sequence import FinishReason, GenerateRequest, SamplingParams, SequenceDelta

__all__ = [
    "FinishReason",
    "GenerateRequest",
    "LatencyGuard",
    "LatencySettings",
    "Sampled",
    "SamplingParams",
    "Scheduler",
    "SchedulerSettings",
    "SequenceDelta",
    "SlotHolders",
    "StepCounts",
    "StepPlan",
]
