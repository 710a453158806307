"""Where other threads meet the engine thread."""

import threading

from engines.core.inbox import Inbox

PATIENCE_S = 20.0


def test_work_alone_does_not_wake_a_paused_engine():
    """It sleeps until it is resumed, and does not spin."""
    inbox, asked_while_paused = Inbox(1), []

    def has_work():
        asked_while_paused.append(inbox.is_paused)
        return True

    def pause_and_resume():
        assert inbox.pause(PATIENCE_S), "the engine never came to rest"
        inbox.resume()

    assert inbox.await_work(has_work)
    thread = threading.Thread(target=pause_and_resume)
    thread.start()
    while not inbox.is_paused:
        threading.Event().wait(0.001)
    assert inbox.await_work(has_work)
    thread.join(PATIENCE_S)
    assert inbox.may_step
    assert not any(asked_while_paused)


def test_an_errand_wakes_a_paused_engine_for_a_turn_without_a_step():
    """Snapshots are answered while nothing moves."""
    inbox, called = Inbox(1), []
    inbox.pause(0)
    assert inbox.ask(lambda: called.append(1))
    assert inbox.await_work(lambda: True)
    assert not inbox.may_step
    for errand in inbox.take_errands():
        errand()
    assert called == [1]
    assert inbox.take_errands() == []


def test_pausing_waits_for_the_turn_that_may_be_making_a_step():
    """True means that no step is being made, whatever the thread was at."""
    inbox = Inbox(1)
    assert inbox.await_work(lambda: True)
    assert not inbox.pause(0)
    inbox.ask(lambda: None)
    assert inbox.await_work(lambda: True)
    assert inbox.pause(0)


def test_nothing_is_asked_of_one_that_is_over():
    """Whoever asks knows that nobody will answer."""
    inbox = Inbox(1)
    assert inbox.ask(lambda: None)
    assert len(inbox.take_errands(is_last=True)) == 1
    assert not inbox.ask(lambda: None)


def test_whoever_waits_is_told_before_it_and_only_then():
    """An engine shows its load when it comes to rest, not once a step."""
    inbox, rests = Inbox(1), []

    def rest():
        rests.append(1)
        inbox.ask(lambda: None)  # else it would wait for ever

    assert inbox.await_work(lambda: True, rest)
    assert not rests
    assert inbox.await_work(lambda: False, rest)
    assert rests == [1]
    assert inbox.await_work(lambda: False, rest)
    assert rests == [1]
