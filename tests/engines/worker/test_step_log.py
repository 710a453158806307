"""The step log: what is in it, what is not, and that it is bounded."""

from pathlib import Path

import pytest
import structlog

from engines.core.outlook import StepOutlook, StepRecord
from engines.core.plan import Discard, Fork, Restore, Row, Save, StepPlan, Truncate
from engines.step_cost import StepCost
from engines.worker.loaded import CannotStart, load_engine
from engines.worker.step_log import LoggedRow, StepLog, read_step_log
from policies.lane import Lane
from tests.engines.worker.scripted import fake_options


def record(number=1, tokens=(987654,)):
    rows = (Row(3, 10, tokens, num_samples=1), Row(4, 0, (11, 12), num_samples=0))
    outlook = StepOutlook((Lane.INTERACTIVE, Lane.BULK), StepCost(0.01, 0.001, 0.0001), 0.02, 0.011, 0.03, 2, True)
    return StepRecord(StepPlan(number, (), rows), outlook, 0.025)


def test_a_step_can_be_read_back(tmp_path):
    """All that is needed to check the objective, and no token of anybody's prompt."""
    log = StepLog(tmp_path / "steps")
    log.write(record())
    log.close()
    log.close()
    (step,) = read_step_log(tmp_path / "steps")
    assert step.rows == [LoggedRow("interactive", 10, 1, True), LoggedRow("bulk", 0, 2, False)]
    assert (step.step, step.cost, step.seconds) == (1, (0.01, 0.001, 0.0001), 0.025)
    assert (step.modelled_s, step.modelled_urgent_s, step.objective_s) == (0.02, 0.011, 0.03)
    assert (step.bulk_left_out, step.is_lifted) == (2, True)
    assert "987654" not in (tmp_path / "steps").read_text()


def test_operations_on_memory_are_counted_by_kind(tmp_path):
    """Who forked, saved and restored, and what copies were believed to take; a step of nothing else has a line too."""
    log = StepLog(tmp_path / "steps")
    memory = (Fork(1, 2, 16), Fork(1, 3, 16), Truncate(1, 0), Save(2, 1, 160), Restore(1, 4, 96), Discard(1))
    outlook = StepOutlook((), StepCost(), 0.004, 0.0, None, 0, is_lifted=False, copy_s=0.004)
    log.write(StepRecord(StepPlan(1, memory, ()), outlook, 0.005))
    log.write(record())
    log.close()
    first, second = read_step_log(tmp_path / "steps")
    assert first.memory == {"fork": 2, "truncate": 1, "save": 1, "restore": 1, "discard": 1}
    assert (first.saved_tokens, first.restored_tokens, first.copy_s, first.rows) == (160, 96, 0.004, [])
    assert (second.memory, second.saved_tokens, second.restored_tokens, second.copy_s) == ({}, 0, 0, 0.0)


def test_the_log_keeps_the_newest_steps_in_two_files(tmp_path):
    """A worker that runs for months must not fill a disk."""
    log = StepLog(tmp_path / "steps", max_bytes=2000)
    for number in range(100):
        log.write(record(number))
    log.close()
    old, new = read_step_log(tmp_path / "steps.1"), read_step_log(tmp_path / "steps")
    numbers = [step.step for step in (*old, *new)]
    assert numbers == list(range(numbers[0], 100))
    assert 4 < len(numbers) < 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["steps", "steps.1"]


async def test_a_service_logs_its_steps_and_closes_the_file(make_service, tmp_path):
    """The option reaches the engine; the file ends with the service."""
    service = make_service(step_log=tmp_path / "steps")
    service.close()
    assert read_step_log(tmp_path / "steps") == []
    assert "bytes=0" in repr(service.loaded.step_log)


def test_a_log_that_cannot_be_written_is_said_at_start(tmp_path):
    """With the path, and not in the first step."""
    with pytest.raises(CannotStart, match="No such file"):
        load_engine(fake_options(step_log=tmp_path / "none" / "steps"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is always full")
def test_a_full_disk_ends_the_log_and_nothing_else(tmp_path):
    """Not with an error for every step, which would fill whatever the process's own log goes to."""
    log = StepLog(Path("/dev/full"))
    with structlog.testing.capture_logs() as said:
        for _ in range(3):
            log.write(record())
    assert [(line["event"], line["log_level"]) for line in said] == [("step_log.ended", "warning")]
    with pytest.raises(OSError, match=r"the step log .*missing.* cannot be written: No such file"):
        StepLog(tmp_path / "missing" / "steps")
