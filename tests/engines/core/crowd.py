"""Requests in company, and the same alone: what tests compare that say that others change no answer."""

from hypothesis import strategies as st

from tests.engines.core.driven import Driven


def alone(prompt, sampling, eos_every, **fields) -> Driven:
    """An engine after the request `alone`, which had it, with ample room and whole steps, to itself."""
    engine = Driven("slots", num_slots=1, kv_tokens=1024, max_seqs=1, max_step_tokens=256, eos_every=eos_every)
    assert engine.add("alone", prompt, sampling, **fields) is None
    engine.run()
    return engine


def crowd(engine, arrivals) -> Driven:
    """An engine of these options after all of `arrivals`: a request each, and the steps made before it comes."""
    driven = Driven(**engine)
    for index, (request, steps_before) in enumerate(arrivals):
        for _ in range(steps_before):
            driven.step()
        assert driven.add(str(index), **request) is None
    driven.run()
    return driven


def scripts(requests, max_size):
    """Requests that come, steps, and what may go wrong between them."""
    return st.lists(
        st.one_of(
            st.tuples(st.just("add"), requests),
            st.tuples(st.just("step"), st.none()),
            st.tuples(st.just("abort"), st.integers(0, 9)),
            st.tuples(st.just("abort in flight"), st.integers(0, 9)),
            st.tuples(st.just("fail"), st.none()),
        ),
        max_size=max_size,
    )


def play(engine, script):
    """An engine of these options after a script and whatever was open then, and its requests by id."""
    driven = Driven(**engine)
    added = {}
    for action, argument in script:
        if action == "add":
            id_ = str(len(added))
            assert driven.add(id_, **argument) is None
            added[id_] = argument
        elif action == "abort":
            driven.abort(str(argument))
        elif action == "fail":
            plan = driven.scheduler.schedule(driven.now)
            if plan is not None:
                driven.fail(plan)
                driven.scheduler.check_integrity()
        else:
            id_ = str(argument)
            driven.step((lambda id_=id_: driven.abort(id_)) if action == "abort in flight" else (lambda: None))
    driven.run()
    return driven, added


def assert_nothing_is_held(driven):
    """Nobody sits, waits or has blocks."""
    statistics = driven.scheduler.statistics()
    assert (statistics.running, statistics.waiting, statistics.used_blocks) == (0, 0, 0)
