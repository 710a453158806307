"""What a gateway writes down survives its death; files are bounded, and what finds no room is not sent."""

import fcntl
import resource
import shutil
import signal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gateway.errors import Refused
from gateway.ledger_file import LedgerFile
from gateway.ledger_lines import CONTINUED, Intent, Unreadable, encode, parse, row_of
from gateway.ledger_replay import LedgerReader
from observability.records import RequestRecord

NOW = 1_800_000_000.0


class Clock:
    """Monotonic seconds that stand still until told."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def intent(number, tokens=50):
    """The intent of request `number`."""
    return Intent(
        f"req_{number}", NOW + number, "org_a", "proj_a", "key_a", "small-a", "bulk", "/v1/completions", tokens, 7, 0
    )


def record(number, **fields):
    """Its end."""
    whole = {
        "model": "small-a",
        "organization": "org_a",
        "project": "proj_a",
        "key": "key_a",
        "lane": "bulk",
        "outcome": "finished",
        "status": 200,
        "attempts": 1,
        "charged_tokens": 30,
        **fields,
    }
    return RequestRecord(
        request_id=f"req_{number}", started_at=NOW + number, surface="/v1/completions", duration_s=1.0, **whole
    )


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make(tmp_path, clock):
    """Makes journals in one folder, closed at the end."""
    made = []

    def start(**options):
        made.append(LedgerFile(tmp_path / "ledger", "gateway-1", clock=clock, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


def files(tmp_path):
    return sorted((tmp_path / "ledger").glob("*.ledger"))


def replayed(tmp_path):
    """(ids settled, ids recovered) of all files, as if their gateway were dead."""
    settled, recovered = [], []
    for path in files(tmp_path):
        reader = LedgerReader(path)
        while (batch := reader.read()) is not None:
            settled += [row.request_id for row in batch.rows]
            reader.advance(batch)
        recovered += [row.request_id for row in reader.recovered(NOW)]
    return settled, recovered


def test_what_was_settled_is_not_recovered(make, tmp_path):
    """A dead gateway's unsettled requests are charged what they had reserved, the others what they used."""
    journal = make()
    journal.intend(intent(1))
    journal.intend(intent(2))
    journal.settle(record(1))
    assert journal.num_open == 1
    assert replayed(tmp_path) == (["req_1"], ["req_2"])


def test_a_recovered_row_is_charged_its_reservation(make, tmp_path):
    """Nobody knows what was used, so it is what the limits had held back for it."""
    make().intend(intent(1, tokens=77))
    reader = LedgerReader(files(tmp_path)[0])
    reader.advance(reader.read())
    (row,) = reader.recovered(NOW + 60)
    assert (row.charged_tokens, row.reserved_tokens, row.cost_nanousd) == (77, 77, 7)
    assert (row.recovered, row.is_estimated, row.outcome) == (True, True, "recovered")
    assert (row.started_at, row.ended_at, row.project, row.lane) == (NOW + 1, NOW + 60, "proj_a", "bulk")


def test_a_request_that_was_never_sent_is_written_down_at_its_end(make, tmp_path):
    """A refusal has no intent, and a row all the same."""
    make().settle(record(1, outcome="refused", status=429))
    assert replayed(tmp_path) == (["req_1"], [])


def test_who_has_no_project_is_not_written_down(make, tmp_path):
    """Callers without a key must not be able to fill the disk."""
    make().settle(record(1, project="", outcome="unauthenticated", status=401))
    assert replayed(tmp_path) == ([], [])


def test_the_file_is_its_owners_alone(make, tmp_path):
    """What tenants did is not for others on the machine."""
    make().intend(intent(1))
    assert files(tmp_path)[0].stat().st_mode & 0o777 == 0o600
    assert files(tmp_path)[0].parent.stat().st_mode & 0o777 == 0o700


def test_a_living_owner_is_seen(make, tmp_path):
    """Only a dead gateway's requests may be recovered."""
    journal = make()
    reader = LedgerReader(files(tmp_path)[0])
    assert reader.is_owned()
    journal.close()
    assert not reader.is_owned()
    journal.close()


def test_two_readers_see_a_dead_owner_at_once(make, tmp_path):
    """The supervisor and a gateway that starts may both look, and neither may take the other for the owner."""
    make().close()
    with files(tmp_path)[0].open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert not LedgerReader(files(tmp_path)[0]).is_owned()


def test_files_go_on_in_new_ones(make, tmp_path):
    """A file is let go when it is full; open requests go on in the next one and are settled there."""
    journal = make(max_file_bytes=1000)
    journal.intend(intent(0))
    for number in range(1, 20):
        journal.intend(intent(number))
        journal.settle(record(number))
    assert len(files(tmp_path)) > 3
    owned = [LedgerReader(path).is_owned() for path in files(tmp_path)]
    assert owned == [False] * (len(owned) - 1) + [True]
    settled, recovered = replayed(tmp_path)
    assert settled == [f"req_{number}" for number in range(1, 20)]
    assert recovered == ["req_0"]
    journal.settle(record(0))
    assert replayed(tmp_path) == ([*settled, "req_0"], [])


def test_a_full_folder_refuses_what_is_new_and_settles_what_was_begun(make, tmp_path, clock):
    """What cannot be charged is not sent; what was sent is always written down."""
    journal = make(max_file_bytes=600, max_files=2)
    begun = []
    with pytest.raises(Refused) as refused:
        for number in range(100):
            journal.intend(intent(number))
            begun.append(number)
    assert (refused.value.problem.status, refused.value.problem.code) == (503, "ledger_full")
    assert len(files(tmp_path)) == 2
    for number in begun:
        journal.settle(record(number))
    settled, recovered = replayed(tmp_path)
    assert (settled, recovered) == ([f"req_{number}" for number in begun], [])
    assert journal.num_open == 0
    files(tmp_path)[0].unlink()  # the ledger has taken it
    with pytest.raises(Refused):
        journal.intend(intent(200))
    clock.now += 1
    journal.intend(intent(200))


def test_refusals_leave_half_of_the_room_to_what_is_served(make, tmp_path, clock):
    """Somebody who is refused all the time must not be able to stop the others."""
    journal = make(max_file_bytes=600, max_files=6)
    for number in range(100):
        journal.settle(record(number, outcome="refused"))
    assert journal.num_dropped > 0
    assert len(files(tmp_path)) <= 4
    journal.intend(intent(1000))
    journal.settle(record(1000))
    assert replayed(tmp_path)[0][-1] == "req_1000"
    dropped = journal.num_dropped
    for path in files(tmp_path)[:-1]:
        path.unlink()
    clock.now += 1
    journal.settle(record(2000, outcome="refused"))
    assert journal.num_dropped == dropped


@pytest.fixture
def full_disk(tmp_path):
    """A function that sets how large a file of this process may become: beyond it a write is short, then fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with capture_logs():  # what it says may be a file, too
        yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_refuses_what_is_new_and_keeps_what_ended(make, tmp_path, full_disk):
    """A write that was cut short leaves nothing behind; what found no room is written when there is some again."""
    journal = make()
    journal.intend(intent(1))
    size = files(tmp_path)[0].stat().st_size
    assert journal.fault is None
    full_disk(size + 20)
    with pytest.raises(Refused):
        journal.intend(intent(2))
    assert "cannot be written down" in journal.fault
    journal.settle(record(1))
    journal.settle(record(3, outcome="refused"))
    assert (journal.num_dropped, files(tmp_path)[0].stat().st_size) == (1, size)
    with pytest.raises(Refused):
        journal.intend(intent(4))
    full_disk(resource.RLIM_INFINITY)
    journal.intend(intent(5))
    assert journal.fault is None
    assert replayed(tmp_path) == (["req_1"], ["req_5"])


def test_a_full_disk_is_told_once(make, tmp_path, full_disk):
    """Or the log fills what is left of it; again after there was room."""
    journal = make()
    with capture_logs() as told:
        for _ in range(2):
            full_disk(files(tmp_path)[0].stat().st_size)
            for number in range(3):
                with pytest.raises(Refused):
                    journal.intend(intent(number))
            full_disk(resource.RLIM_INFINITY)
            journal.intend(intent(9))
    assert [one["event"] for one in told].count("ledger.write_failed") == 2


def test_a_full_disk_stops_the_change_to_a_new_file(make, tmp_path, full_disk):
    """The old file stays in use, and nothing of the new one is left."""
    journal = make(max_file_bytes=600)
    for number in range(4):
        journal.intend(intent(number))
    full_disk(100)
    with pytest.raises(Refused):
        journal.intend(intent(9))
    full_disk(resource.RLIM_INFINITY)
    assert len(files(tmp_path)) == 1
    assert [path.suffix for path in (tmp_path / "ledger").iterdir()] == [".ledger"]
    assert replayed(tmp_path)[1] == [f"req_{number}" for number in range(4)]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    """A gateway that cannot write down anything does not start."""
    (tmp_path / "ledger").write_text("a file")
    with pytest.raises(OSError, match=r"exists"):
        LedgerFile(tmp_path / "ledger", "gateway-1")


def test_closing_writes_what_found_no_room(make, tmp_path, full_disk):
    """The disk may have room again when the gateway ends."""
    journal = make()
    journal.intend(intent(1))
    full_disk(files(tmp_path)[0].stat().st_size)
    journal.settle(record(1))
    full_disk(resource.RLIM_INFINITY)
    journal.close()
    assert replayed(tmp_path) == (["req_1"], [])


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 4000), number=st.integers(1, 6))
def test_a_file_that_was_cut_anywhere_is_read_as_far_as_it_goes(tmp_path_factory, cut, number):
    """A kill may come in the middle of a write: the torn line was never written."""
    lines = [encode(intent(one)) for one in range(number)] + [encode(record(one)) for one in range(number - 1)]
    whole = b"".join(line + b"\n" for line in lines)
    path = tmp_path_factory.mktemp("cut") / "x.ledger"
    path.write_bytes(whole[: min(cut, len(whole))])
    num_whole = whole[: min(cut, len(whole))].count(b"\n")
    reader = LedgerReader(path)
    settled = []
    while (batch := reader.read(max_bytes=97)) is not None:
        settled += [row.request_id for row in batch.rows]
        reader.advance(batch)
    assert settled == [f"req_{one}" for one in range(max(0, num_whole - number))]
    expected = [f"req_{one}" for one in range(min(num_whole, number))]
    assert [row.request_id for row in reader.recovered(NOW)] == [one for one in expected if one not in settled]


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 3))
def test_rubbish_between_lines_is_passed_over(rubbish, place):
    """What cannot be read is not a reason to lose the rest."""
    lines = [encode(intent(1)), encode(record(1)), encode(intent(2))]
    lines.insert(place, rubbish)
    found = [line for line in parse(b"\n".join(lines)) if line is not None]
    assert intent(1) in found
    assert intent(2) in found
    assert record(1) in found


@pytest.mark.parametrize("line", [encode(intent(1)), encode(record(1)), CONTINUED[:-1]])
def test_no_part_of_a_line_is_a_line(line):
    """A torn line can never be taken for a whole one."""
    for end in range(len(line)):
        assert all(isinstance(one, Unreadable) for one in parse(line[:end]))


def test_reading_again_changes_nothing(make, tmp_path):
    """A batch that the ledger could not take is read again."""
    journal = make()
    journal.intend(intent(1))
    journal.settle(record(1))
    reader = LedgerReader(files(tmp_path)[0])
    assert reader.read() == reader.read()
    reader.advance(reader.read())
    assert reader.read() is None
    journal.intend(intent(2))
    assert [one.request_id for one in reader.read().begun] == ["req_2"]


def test_every_field_of_a_record_that_a_ledger_keeps_is_in_the_row():
    """The row is the record's, with what nobody charged as 0."""
    whole = record(1, prompt_tokens=5, cached_tokens=3, completion_tokens=2, cost_nanousd=9, limit="tpm", reason="tpm")
    row = row_of(whole)
    common = set(row.__struct_fields__) & set(whole.__struct_fields__)
    assert {name: getattr(row, name) for name in common} == {name: getattr(whole, name) for name in common}
    assert (row.ended_at, row.recovered) == (NOW + 2, False)
    assert row_of(record(1, charged_tokens=None)).charged_tokens == 0


def test_numbers_of_an_engine_that_went_mad_fit_into_a_ledger():
    """Sums have 64 bits; a row that cannot be added would stop all that come after it."""
    row = row_of(record(1, prompt_tokens=2**53, charged_tokens=2**54, cost_nanousd=2**80))
    assert (row.prompt_tokens, row.charged_tokens, row.cost_nanousd) == (2**40, 2**40, 10**13)


_STEPS = st.lists(st.tuples(st.sampled_from(["intend", "settle", "refuse"]), st.integers(0, 8)), max_size=60)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=_STEPS, max_file_bytes=st.integers(300, 3000))
def test_whatever_happened_every_request_is_there_once(tmp_path_factory, steps, max_file_bytes):
    """Settled ones as settled, open ones as recovered, over any number of files; a replay of a replay is the same."""
    folder = tmp_path_factory.mktemp("steps")
    journal = LedgerFile(folder / "ledger", "g", max_file_bytes=max_file_bytes)
    open_ids, ended, used = set(), [], set()
    for step, number in steps:
        if step == "intend" and number not in used:
            journal.intend(intent(number))
            open_ids.add(number)
            used.add(number)
        elif step == "settle" and number in open_ids:
            journal.settle(record(number))
            open_ids.remove(number)
            ended.append(number)
        elif step == "refuse" and number not in used:
            journal.settle(record(number, outcome="refused"))
            used.add(number)
            ended.append(number)
    assert journal.num_open == len(open_ids)
    for _ in range(2):
        settled, recovered = replayed(folder)
        assert settled == [f"req_{number}" for number in ended]
        assert sorted(recovered) == sorted(f"req_{number}" for number in open_ids)
    journal._piece.close()  # as a death does


def gone(tmp_path):
    """Take the folder away with all that is in it."""
    shutil.rmtree(tmp_path / "ledger")


def moved(tmp_path):
    """Give the folder another name: the files have theirs still, but nobody looks there."""
    (tmp_path / "ledger").rename(tmp_path / "elsewhere")


def emptied(tmp_path):
    """Take the files alone."""
    for path in files(tmp_path):
        path.unlink()


@pytest.mark.parametrize("take_away", [gone, moved, emptied])
def test_a_file_that_was_taken_away_is_made_again_with_all_that_was_in_it(make, tmp_path, clock, take_away):
    """What no reader has seen is in the open file still; it is told once, and counted."""
    journal = make()
    journal.settle(record(0, outcome="refused"))
    for number in (1, 2):
        journal.intend(intent(number))
    journal.settle(record(1))
    take_away(tmp_path)
    clock.now += 1
    with capture_logs() as lines:
        journal.intend(intent(3))
        journal.settle(record(3))
        clock.now += 1
        journal.settle(record(2))
    assert replayed(tmp_path) == (["req_0", "req_1", "req_3", "req_2"], [])
    assert [line["event"] for line in lines] == ["ledger.file_removed"]
    assert journal.num_restored == 1
    assert LedgerReader(files(tmp_path)[0]).is_owned()


def test_a_look_at_the_file_is_not_made_for_every_request(make, tmp_path, clock):
    """It costs a call of the kernel; what comes in between is in the open file and goes along."""
    journal = make()
    gone(tmp_path)
    journal.intend(intent(1))
    journal.settle(record(1))
    assert files(tmp_path) == []
    clock.now += 1
    journal.settle(record(2))
    assert replayed(tmp_path) == (["req_1", "req_2"], [])


def test_who_asks_for_the_numbers_has_a_file_that_is_gone_noticed(make, tmp_path):
    """An idle gateway tells of it, too."""
    journal = make()
    journal.settle(record(1))
    gone(tmp_path)
    assert journal.check()
    assert journal.num_restored == 1
    assert replayed(tmp_path) == (["req_1"], [])


def test_closing_makes_a_file_again_that_was_taken_away(make, tmp_path):
    """The last requests before the end are not lost either."""
    journal = make()
    journal.intend(intent(1))
    gone(tmp_path)
    journal.close()
    journal.check()  # harmless
    assert replayed(tmp_path) == ([], ["req_1"])


def test_a_change_of_files_does_not_forget_the_one_that_was_taken_away(make, tmp_path):
    """The old one is made again before it is left: what was settled in it is nowhere else."""
    journal = make(max_file_bytes=1000)
    journal.intend(intent(0))
    journal.settle(record(0))
    gone(tmp_path)
    for number in range(1, 12):
        journal.intend(intent(number))
        journal.settle(record(number))
    assert replayed(tmp_path)[0] == [f"req_{number}" for number in range(12)]


def test_where_no_file_can_be_made_nothing_is_sent_until_one_can(make, tmp_path, clock):
    """What is not kept could not be charged; what was begun waits in the open file."""
    journal = make()
    journal.intend(intent(1))
    gone(tmp_path)
    (tmp_path / "ledger").write_text("in the way")
    clock.now += 1
    with capture_logs() as lines:
        for number in (2, 3):
            with pytest.raises(Refused) as refused:
                journal.intend(intent(number))
            assert refused.value.problem.status == 503
        journal.settle(record(1))
    assert [line["event"] for line in lines] == ["ledger.file_removed", "ledger.refuses"]
    assert "taken away" in journal.fault
    (tmp_path / "ledger").unlink()
    clock.now += 1
    journal.intend(intent(4))
    assert journal.fault is None
    assert replayed(tmp_path) == (["req_1"], ["req_4"])
