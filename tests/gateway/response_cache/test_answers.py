"""What is kept: its bounds are reached, its sums are true, no project pushes another's answers out of its own part."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.response_cache.answers import OVERHEAD_BYTES, CacheBounds, KeptAnswer, KeptAnswers

UNIT = OVERHEAD_BYTES + 100
BOUNDS = CacheBounds(max_bytes=5 * UNIT, max_project_bytes=3 * UNIT, max_entry_bytes=1000, ttl_s=10.0)
KEYS = st.integers(0, 5)
PROJECTS = st.sampled_from("abc")


def answer(project="a", kept_at=0.0, size=100):
    """One of that size."""
    return KeptAnswer(project, kept_at, stream=bytes(size))


def key(project, number):
    """As in life, no two projects have a key in common."""
    return f"{project}{number}".encode()


class Kept(RuleBasedStateMachine):
    """Puts, gets, forgets and expires at random, against a plain list in the order of use."""

    def __init__(self):
        super().__init__()
        self.kept = KeptAnswers()
        self.now = 0.0
        self.order = []  # (key, project, kept_at, size), the longest unused first

    def _size(self, project=None):
        return sum(size for _, of, _, size in self.order if project in (None, of))

    def _drop(self, wanted):
        self.order = [one for one in self.order if one[0] != wanted]

    @rule(project=PROJECTS, number=KEYS, size=st.sampled_from([0, 100, 100, 900, 1001]))
    def put(self, project, number, size):
        """The longest unused goes, of the project first."""
        wanted = key(project, number)
        self._drop(wanted)
        is_kept = self.kept.put(wanted, answer(project, self.now, size), BOUNDS)
        assert is_kept is (size <= 1000)
        if is_kept:
            self.order.append((wanted, project, self.now, OVERHEAD_BYTES + size))
            while self._size(project) > BOUNDS.max_project_bytes:
                self._drop(next(one for one, of, _, _ in self.order if of == project))
            while self._size() > BOUNDS.max_bytes:
                del self.order[0]

    @rule(project=PROJECTS, number=KEYS, max_age_s=st.sampled_from([0.0, 3.0, 10.0]))
    def get(self, project, number, max_age_s):
        """Only what is young enough, and then it is the latest used."""
        wanted = key(project, number)
        there = next((one for one in self.order if one[0] == wanted), None)
        found = self.kept.get(wanted, max_age_s, self.now)
        assert (found is not None) is (there is not None and self.now - there[2] < max_age_s)
        if found is not None:
            assert found.project == project
            self._drop(wanted)
            self.order.append(there)

    @rule(project=PROJECTS)
    def forget(self, project):
        """A project that is gone."""
        self.kept.forget(frozenset({project, "other"}))
        self.order = [one for one in self.order if one[1] != project]

    @rule(passed_s=st.sampled_from([1.0, 4.0, 11.0]))
    def expire(self, passed_s):
        """What is too old."""
        self.now += passed_s
        self.kept.expire(BOUNDS, self.now)
        self.order = [one for one in self.order if self.now - one[2] < BOUNDS.ttl_s]

    @rule(project=PROJECTS, number=KEYS)
    def drop(self, project, number):
        """One, also twice."""
        assert self.kept.drop(key(project, number)) is any(one[0] == key(project, number) for one in self.order)
        assert not self.kept.drop(key(project, number))
        self._drop(key(project, number))

    @invariant()
    def sums_are_true(self):
        """And within the bounds."""
        assert [*self.kept._answers] == [one[0] for one in self.order]
        assert (len(self.kept), self.kept.num_bytes) == (len(self.order), self._size())
        assert self.kept._project_bytes == {of: self._size(of) for of in {one[1] for one in self.order}}
        assert self.kept._of_project.keys() == self.kept._project_bytes.keys()


TestKept = Kept.TestCase
TestKept.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)


def test_smaller_bounds_drop_what_has_no_room_any_more():
    """A reload acts on what is kept already; without any room nothing stays."""
    kept = KeptAnswers()
    for number in range(3):
        kept.put(b"%d" % number, answer(), BOUNDS)
    kept.expire(CacheBounds(2 * UNIT, 3 * UNIT, 1000, 10.0), 0.0)
    assert [*kept._answers] == [b"1", b"2"]
    kept.expire(CacheBounds(0, 3 * UNIT, 1000, 10.0), 0.0)
    assert repr(kept) == "<KeptAnswers answers=0 bytes=0 projects=0>"
    assert kept.counts["evicted"] == 3
    assert not kept.put(b"1", answer(), CacheBounds(0, UNIT, 1000, 10.0))


@pytest.mark.parametrize(("age_s", "expired"), [(9.9, 0), (10.0, 1)])
def test_an_answer_is_good_for_so_long(age_s, expired):
    """To the second."""
    kept = KeptAnswers()
    kept.put(b"k", answer(), BOUNDS)
    kept.expire(BOUNDS, age_s)
    assert (kept.counts["expired"], len(kept)) == (expired, 1 - expired)
