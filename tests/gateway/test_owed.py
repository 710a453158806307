"""What an attempt's tenant pays for, by how it ended and what is known of it."""

from types import SimpleNamespace

import pytest

from gateway.chunks import Usage
from gateway.owed import NOTHING, Done, Owed, done
from gateway.relay import Relayed
from policies.prices import Work

DECISION = SimpleNamespace(prompt_tokens=100, hit_tokens=40)


def relayed(chunks=0, usage=None):
    """An attempt that gave so many chunks."""
    return Relayed(usage=usage, num_chunks=chunks, first_content_at=1.0 if chunks else None)


def usage(prompt, cached, completion):
    """As an engine reports it."""
    details = None if cached is None else {"cached_tokens": cached}
    return Usage(prompt, completion, SimpleNamespace(**details) if details else None)


@pytest.mark.parametrize(
    ("owed", "chunks", "work"),
    [
        (Owed.NOTHING, 5, Work(0, 0, 0)),
        (Owed.DELIVERED, 0, Work(0, 0, 0)),
        (Owed.DELIVERED, 5, Work(100, 40, 5)),
        (Owed.ALL, 0, Work(100, 40, 0)),
        (Owed.ALL, 5, Work(100, 40, 5)),
    ],
)
def test_without_a_report_it_is_what_was_predicted_and_counted(owed, chunks, work):
    """A broken stream is not free, and a prompt that nobody read is."""
    assert done(owed, DECISION, relayed(chunks), 0, 0, is_complete=False).work == work


@pytest.mark.parametrize(
    ("reported", "chunks", "is_complete", "expected"),
    [
        (usage(90, 30, 7), 6, True, Done(Work(90, 30, 7), is_estimated=False)),
        (usage(90, None, 7), 6, True, Done(Work(90, 0, 7), is_estimated=False)),
        (usage(90, 30, 1), 6, False, Done(Work(90, 30, 6), is_estimated=True)),
        (usage(90, 30, 7), 6, False, Done(Work(90, 30, 7), is_estimated=True)),
    ],
)
def test_a_report_is_believed_and_what_was_delivered_since_is_added(reported, chunks, is_complete, expected):
    """What is not reported as cached was computed; a report in the middle of a stream is out of date."""
    assert done(Owed.ALL, DECISION, relayed(chunks, reported), 0, 0, is_complete=is_complete) == expected


def test_output_that_nobody_saw_counts_as_far_as_it_is_known():
    """An unstreamed answer has no chunks to count."""
    assert done(Owed.ALL, DECISION, relayed(), 0, 17, is_complete=False).work.output_tokens == 17
    assert done(Owed.ALL, DECISION, relayed(3), 0, 17, is_complete=False).work.output_tokens == 3


@pytest.mark.parametrize(
    ("chunks", "text_tokens", "output"),
    [
        (300, 75, 300),  # a token a chunk, of one letter each
        (300, 400, 300),  # a token a chunk, of long words
        (10, 200, 200),  # twenty in each
        (10, 19, 10),
        (0, 60, 60),  # an answer that came whole
    ],
)
@pytest.mark.parametrize("is_complete", [True, False])
def test_without_a_report_output_is_counted_by_chunks_unless_their_text_says_that_they_hold_more(
    chunks, text_tokens, output, is_complete
):
    """Never less than a token a chunk; engines that pack several into one are seen by the text."""
    found = done(Owed.ALL, DECISION, relayed(chunks), text_tokens, 128, is_complete=is_complete)
    assert found == Done(Work(100, 40, output), is_estimated=True)


def test_without_an_attempt_nothing_is_owed():
    """It never left the queue."""
    assert done(Owed.ALL, None, None, 0, 5, is_complete=False) is NOTHING
