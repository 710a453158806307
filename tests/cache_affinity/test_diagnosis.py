"""Prefix diagnosis: what it finds, what it takes for no loss, and every one of its bounds."""

import gc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_affinity.diagnosis import (
    EXPIRES_S,
    MAX_BORDERS,
    MAX_CONVERSATIONS,
    MAX_LENGTHS,
    MAX_PLACES,
    MAX_PROJECTS,
    WINDOW,
    PrefixDiagnosis,
)
from cache_affinity.prefix import prefix_key

SYSTEM = b"You are a helpful assistant of the Alder company. " * 100
ENDING = b"#" * 100  # of a message, so that it ends alike


class Noted:
    """A diagnosis that prompts are given to, and what it tells of the only project."""

    def __init__(self):
        self.diagnosis = PrefixDiagnosis()
        self.now = 0.0

    def note(self, *segments, project="p", model="m", home_segments=2, home_hint=b""):
        """A prompt a second."""
        self.now += 1
        key = prefix_key(model, "salt", segments, home_segments=home_segments, home_hint=home_hint)
        self.diagnosis.note(project, "o", model, key, segments, now=self.now)

    @property
    def told(self):
        """Of one project."""
        [one] = self.diagnosis.told(self.now)
        return one

    @property
    def places(self):
        """(segment, first, end, prompts, lost bytes) of each place."""
        return [(where[0], one.first, one.end, one.num_prompts, one.lost_bytes) for where, one in self.told.places]


@pytest.fixture
def noted():
    """An empty one."""
    return Noted()


def test_a_number_near_the_start_is_found_to_the_byte_with_what_it_costs(noted):
    """The whole system prompt behind it is read again, each time."""
    for number in range(50):
        noted.note(b"Now: %04d. " % (number * 1111 % 9999) + SYSTEM, b"question %d" % number)
    [(segment, first, end, prompts, lost)] = noted.places
    assert (segment, first, end, prompts) == (0, 5, 6, 49)
    assert lost >= 46 * len(SYSTEM)
    assert noted.told.num_grew == 0


def test_few_prompts_tell_the_place_more_widely(noted):
    """Two prompts have nothing finer than a border in common."""
    for number in range(2):
        noted.note(b"Now: %d. " % number + SYSTEM, b"question")
    assert noted.places == [(0, 0, 1024, 1, len(b"Now: 0. " + SYSTEM + b"question"))]


def test_a_conversation_that_grows_loses_nothing(noted):
    """Also beside others: each turn is held against its own conversation's last one."""
    for turn in range(1, 6):
        for chat in range(4):
            noted.note(SYSTEM, b"hello %d" % chat, *(b"message %d of " % n + b"x" * chat for n in range(2 * turn)))
    told = noted.told
    assert (told.num_prompts, told.num_grew) == (19, 16)
    assert [lost for *_, lost in noted.places] == [0]


def test_the_same_prompt_again_is_told_apart(noted):
    """A retry, or a benchmark."""
    for _ in range(3):
        noted.note(SYSTEM, b"question")
    assert (noted.told.num_prompts, noted.told.num_repeated, noted.places) == (2, 2, [])


def test_a_prompt_that_is_cut_short_loses_nothing(noted):
    """All of it came before."""
    noted.note(SYSTEM, b"question", b"answer", b"more")
    noted.note(SYSTEM, b"question")
    assert (noted.told.num_grew, noted.places) == (1, [])


def test_questions_of_other_lengths_behind_one_system_prompt_are_no_loss(noted):
    """They differ, as they should, and nothing behind that was known."""
    for number in range(20):
        noted.note(SYSTEM, b"%d" % number * (number + 3))
    assert sum(lost for *_, lost in noted.places) == 0


def test_a_changed_message_in_the_past_costs_all_behind_it(noted):
    """Such as a time that is put into an old message anew with each turn."""
    history = [b"said %d " % n + b"." * 500 for n in range(10)]
    for number in range(30):
        noted.note(SYSTEM, b"hello", b"<now %02d>" % number, *history)
    segment, first, end, prompts, lost = noted.places[0]
    assert (segment, first, end, prompts) == (2, 6, 7, 27)
    assert lost >= 25 * sum(map(len, history))


def test_after_a_window_the_byte_is_looked_for_again(noted):
    """What changed moved: the old place fades with its window."""
    for number in range(WINDOW):
        noted.note(b"%03d" % number + SYSTEM)
    for number in range(2 * WINDOW + 2):
        noted.note(b"date and hour " + b"%03d" % (number % 999) + SYSTEM)
    segment, first, end, prompts, _ = noted.places[0]
    assert (segment, first, end) == (0, 16, 17)
    assert prompts > WINDOW * 0.8


def test_bytes_that_change_more_and_less_often_are_places_of_their_own(noted):
    """As the digits of a clock are: the last changes each time, the one before in one of ten."""
    for number in range(200):
        noted.note(b"clock %03d " % number + SYSTEM)
    found = {first: prompts for _, first, end, prompts, _ in noted.places if end - first == 1}
    assert found[8] > 160
    assert sum(prompts for *_, prompts, _ in noted.places) == 199


def test_two_applications_of_a_project_are_not_held_against_each_other(noted):
    """Their prompts come by turns; each has a date, and the byte is its own."""
    for number in range(40):
        noted.note(b"Now: %02d. " % number + SYSTEM, b"question %d" % number)
        noted.note(b"You are the other one. " * 9 + b"%02d" % number + SYSTEM, b"what of %d" % number)
    exact = {first for _, first, end, prompts, lost in noted.places if end - first == 1 and lost > 10 * len(SYSTEM)}
    assert exact & {6, 208}
    assert sum(lost for *_, lost in noted.places) > 60 * len(SYSTEM)


def test_counts_are_of_two_windows_at_most(noted):
    """So that a repaired client is told so soon."""
    for _ in range(3 * WINDOW):
        noted.note(SYSTEM, b"question")
    assert WINDOW <= noted.told.num_prompts <= 2 * WINDOW


def test_places_are_bounded(noted):
    """A client whose every prompt differs elsewhere has the table of one window, at most two."""
    for number in range(4 * MAX_PLACES):
        noted.note(*(b"m%d" % n for n in range(number % (2 * MAX_PLACES))), b"x%d" % number, home_hint=b"one")
    assert MAX_PLACES // 2 < len(noted.places) <= MAX_PLACES


def test_conversations_are_bounded(noted):
    """The oldest is forgotten: its next turn is held against the project's latest prompt."""
    for chat in range(MAX_CONVERSATIONS + 1):
        noted.note(SYSTEM, b"hello %d" % chat)
    before = noted.told.num_grew
    noted.note(SYSTEM, b"hello 0", b"answer", b"more")
    assert noted.told.num_grew == before
    noted.note(SYSTEM, b"hello %d" % MAX_CONVERSATIONS, b"answer", b"more")
    assert noted.told.num_grew == before + 1


def test_what_lies_behind_the_last_border_looked_at_is_not_seen(noted):
    """128 KiB: a difference there counts as growth."""
    long = b"x" * (1024 * MAX_BORDERS)
    noted.note(long, b"one")
    noted.note(long, b"other")
    assert (noted.told.num_repeated, noted.places) == (1, [])


def test_applications_are_bounded(noted):
    """Of first messages the lengths seen last are known; the same prompt again tells whether they are."""
    prompts = [b"." * 100 * (number + 1) + SYSTEM for number in range(MAX_LENGTHS + 1)]
    for prompt in prompts:
        noted.note(prompt)
    noted.note(prompts[0])
    assert noted.told.num_repeated == 0
    noted.note(prompts[-1])
    assert noted.told.num_repeated == 1


def test_projects_are_bounded_and_the_least_recent_goes(noted):
    """256 of them, each with its models."""
    for number in range(MAX_PROJECTS + 1):
        noted.note(SYSTEM, project=f"p{number}")
        noted.note(SYSTEM, project="p0")
    assert len(noted.diagnosis) == MAX_PROJECTS
    assert {"p0", f"p{MAX_PROJECTS}"} <= {one.project_id for one in noted.diagnosis.told(noted.now)}
    assert "p1" not in {one.project_id for one in noted.diagnosis.told(noted.now)}


def test_a_project_that_is_silent_for_a_day_is_forgotten(noted):
    """Told by nobody, and begun anew if it comes back."""
    noted.note(SYSTEM)
    noted.note(SYSTEM)
    assert noted.told.num_prompts == 1
    noted.now += EXPIRES_S
    noted.note(SYSTEM)
    assert noted.told.num_prompts == 0
    assert list(noted.diagnosis.told(noted.now + EXPIRES_S + 1)) == []
    assert len(noted.diagnosis) == 0


def test_a_deleted_project_is_forgotten_with_all_its_models(noted):
    """And no other."""
    for project, model in (("p", "m"), ("p", "n"), ("q", "m")):
        noted.note(SYSTEM, project=project, model=model)
    assert noted.diagnosis.forget(frozenset({"p", "none"})) == 2
    assert [one.project_id for one in noted.diagnosis.told(noted.now)] == ["q"]


def test_projects_and_models_are_told_apart(noted):
    """What another project says is nobody's predecessor."""
    for number in range(4):
        noted.note(b"%d" % number + SYSTEM, project=f"p{number % 2}", model=f"m{number % 2}")
    assert [(one.project_id, one.num_prompts) for one in noted.diagnosis.told(noted.now)] == [("p0", 1), ("p1", 1)]


def test_no_text_is_kept(noted):
    """Neither whole nor in part: nothing that the diagnosis reaches is bytes, and its words are ours."""
    for number in range(20):
        noted.note(b"secret words %d" % number + SYSTEM, b"more of them")
    seen, left = set(), [noted.diagnosis]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type) or callable(one):
            continue
        seen.add(id(one))
        assert not isinstance(one, bytes | bytearray)
        assert not isinstance(one, str) or one in {"p", "m", "o", "segment"} or one.isidentifier()
        left += gc.get_referents(one)
    assert len(seen) > 100


def test_a_prompt_with_an_older_watchs_digests_tells_nothing_finer(noted):
    """A watch narrows with one conversation's prompts; another's last prompt has digests of other pieces."""
    for number, hint in enumerate((b"a", b"b", b"a", b"b", b"a")):
        noted.note(b"." * 100 + b"%d" % number + SYSTEM, home_hint=hint)
    [(_, first, end, prompts, _)] = noted.places
    assert first <= 100 < end
    assert prompts == 4


SEGMENTS = st.lists(st.binary(max_size=1500), max_size=5)


@given(st.lists(SEGMENTS, min_size=2, max_size=8))
@settings(max_examples=60, deadline=None)
def test_the_byte_that_differs_lies_in_what_is_told(prompts):
    """Whatever comes, every place of a single pair holds the true first difference, and nothing ever raises."""
    noted = Noted()
    for segments in prompts:
        noted.note(*segments, home_hint=b"one")
    assert noted.told.num_prompts == len(prompts) - 1
    for before, now in pairwise(prompts):
        pair = Noted()
        for segments in (before, now):
            pair.note(*segments, home_hint=b"one")
        for segment, first, end, *_ in pair.places:
            assert before[:segment] == now[:segment] or b"" in [*before, *now]
            assert first < end <= len(now[segment])
            assert now[segment][:first] == (before[segment : segment + 1] or [b""])[0][:first] or b"" in before
