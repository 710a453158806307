"""An engine's pace, and what others are shown of it."""

from engines.core.admission import SchedulerSettings
from engines.core.meter import StepMeter
from engines.core.scheduler import Scheduler
from engines.core.sequence import GenerateRequest, SamplingParams


def scheduler():
    return Scheduler(SchedulerSettings(max_seqs=2, max_step_tokens=8, context_tokens=64, kv_tokens=64))


def test_others_are_shown_other_sequences_at_once_and_counters_after_a_tenth_of_a_second():
    """Who polls sees who is there; to gather all counters would cost every step."""
    meter, rules = StepMeter(None, 0), scheduler()
    assert meter.is_stale(rules.population, 5.0)
    meter.refresh(rules.statistics(), 5.0)
    assert not meter.is_stale(rules.population, 5.09)
    assert meter.is_stale(rules.population, 5.2)
    rules.add(GenerateRequest("r", (1, 2), SamplingParams(temperature=0)), 5.0)
    assert rules.population == (0, 1)
    assert meter.is_stale(rules.population, 5.01)
    meter.refresh(rules.statistics(), 5.01)
    assert (meter.load.running, meter.load.waiting) == (0, 1)
    rules.schedule(5.02)
    assert rules.population == (1, 0)
    assert meter.is_stale(rules.population, 5.02)


def test_faults_are_shown_though_nothing_else_is_known():
    """A device that fails from its first step on must not look untouched."""
    meter = StepMeter(None, 0)
    meter.count_fault()
    assert (meter.load.faults, meter.load.num_steps) == (1, 0)
