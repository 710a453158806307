"""Kept responses on each store, held against a plain dict: whatever is kept, gone on from, dropped, over or too old."""
# ruff: noqa: F811  # fixtures of test_store.py are arguments here

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from policies.kept_responses import KeptBound, KeptResponse
from tests.contracts.test_store import clock, reopen  # noqa: F401  # fixtures
from tests.redis_server import redis_program, shared_redis  # noqa: F401  # fixtures

BOUND = KeptBound(number=4, total_bytes=1000)
KEEP_S = 60.0
PLACES = st.integers(0, 1)  # which of the two projects
OLDER = st.integers(0, 7)  # how many responses ago
SIZES = st.integers(0, 450) | st.integers(900, 1100)


class Keeping(RuleBasedStateMachine):
    """`_told`: ids that were ever told of each project, in order. `_kept`: what must be found of them, oldest first."""

    def __init__(self, run, store, clock, projects):
        super().__init__()
        self._run, self._store, self._clock, self._projects = run, store, clock, projects
        self._told = [[], []]
        self._kept = [{}, {}]

    def _keep(self, place, ids, contents):
        """Write these at once."""
        ends = self._clock.now + KEEP_S
        project, kept = self._projects[place], self._kept[place]
        whole = [KeptResponse(project, id_, ends, content) for id_, content in zip(ids, contents, strict=True)]
        self._run(self._store.keep_responses(whole, BOUND))
        for id_, content in zip(ids, contents, strict=True):
            kept.pop(id_, None)
            kept[id_] = (content, ends)
            while len(kept) > BOUND.number or sum(len(one) for one, _ in kept.values()) > BOUND.total_bytes:
                del kept[next(iter(kept))]

    def _new_id(self, place):
        self._told[place].append(f"resp_{len(self._told[place]):04x}")
        return self._told[place][-1]

    def _one_of(self, place, older):
        """An id that was told, or one that never was."""
        told = self._told[place]
        return told[-1 - older] if older < len(told) else "resp_ffff"

    @rule(place=PLACES, sizes=st.lists(SIZES, min_size=1, max_size=3))
    def tell(self, place, sizes):
        """Responses that were told together."""
        self._keep(place, [self._new_id(place) for _ in sizes], [b"x" * size for size in sizes])

    @rule(place=PLACES, older=OLDER, size=st.integers(0, 200))
    def go_on(self, place, older, size):
        """From one that may be there; what is kept holds all of it."""
        found = self._run(self._store.kept_response(self._projects[place], self._one_of(place, older)))
        if found is not None:
            self._keep(place, [self._new_id(place)], [found + b"y" * size])

    @rule(place=PLACES, older=OLDER, size=SIZES)
    def tell_again(self, place, older, size):
        """As after a write that failed in the middle."""
        if older < len(self._told[place]):
            self._keep(place, [self._one_of(place, older)], [b"z" * size])

    @rule(place=PLACES, older=OLDER)
    def drop(self, place, older):
        """What was there, once; and what was not."""
        id_ = self._one_of(place, older)
        was_there = self._run(self._store.drop_response(self._projects[place], id_))
        assert was_there == (self._kept[place].pop(id_, None) is not None)

    @rule(seconds=st.sampled_from([1.0, KEEP_S / 2, KEEP_S]), expires=st.booleans())
    def wait(self, seconds, expires):
        """Some are over, to the second, whether or not anybody cleans up."""
        self._clock.now += seconds
        for place, kept in enumerate(self._kept):
            self._kept[place] = {id_: one for id_, one in kept.items() if one[1] > self._clock.now}
        if expires:
            self._run(self._store.expire_responses())

    @invariant()
    def each_project_finds_what_it_told(self):
        """Neither more nor less, and nothing of the other's."""

        async def found(place):
            ids = self._told[place][-10:]
            contents = [await self._store.kept_response(self._projects[place], id_) for id_ in ids]
            return {id_: content for id_, content in zip(ids, contents, strict=True) if content is not None}

        for place, kept in enumerate(self._kept):
            assert self._run(found(place)) == {id_: content for id_, (content, _) in kept.items()}


def test_a_store_keeps_what_a_dict_would(reopen, clock):
    """On both stores: two projects, each with its own bound."""
    with asyncio.Runner() as runner:
        store = runner.run(reopen())

        async def projects():
            organization = await store.create_organization("acme")
            return [(await store.create_project("p", organization.id)).id for _ in range(2)]

        try:
            run_state_machine_as_test(
                lambda: Keeping(runner.run, store, clock, runner.run(projects())),
                settings=settings(max_examples=50, stateful_step_count=20, deadline=None),
            )
        finally:
            runner.run(store.close())
