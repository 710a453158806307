"""Several gateways' answers as one."""

import pytest

from gateway.admin.aggregate import merged_replicas, summed, summed_exposition


def test_one_answer_is_unchanged():
    """With one gateway process aggregation is the identity."""
    answer = {"in_flight": {"requests": 1, "ok": True}, "lanes": [1], "name": "a"}
    assert summed([answer]) == answer
    assert summed([]) == {}


def test_numbers_are_summed_key_by_key():
    """In flight on the node is the sum over its processes, also where one has a key the other lacks."""
    first = {"in_flight": {"requests": 1, "queued": 2}, "lanes": [1], "name": "a", "is_ready": True, "x": 0.5}
    second = {"in_flight": {"requests": 3, "leases": 4}, "lanes": [2], "name": "b", "is_ready": False, "x": 0.25}
    assert summed([first, second]) == {
        "in_flight": {"requests": 4, "queued": 2, "leases": 4},
        "lanes": [1, 2],
        "name": "a",
        "is_ready": True,
        "x": 0.75,
    }


def test_one_exposition_is_unchanged_to_the_byte():
    """No parsing where nothing is to be added."""
    assert summed_exposition(["anything at all\n"]) == "anything at all\n"


def test_samples_of_the_same_labels_are_summed_and_comments_stand_once():
    """A counter of the node is the sum of its processes' counters."""
    first = '# HELP a A.\n# TYPE a counter\na_total{m="x y"} 1.0\na_total{m="z"} 2.0\n'
    second = '# HELP a A.\n# TYPE a counter\na_total{m="x y"} 3.5\n# TYPE b gauge\nb +Inf\n'
    assert summed_exposition([first, second]) == (
        '# HELP a A.\n# TYPE a counter\na_total{m="x y"} 4.5\na_total{m="z"} 2.0\n# TYPE b gauge\nb +Inf\n'
    )


def test_what_all_say_of_the_same_thing_is_not_summed():
    """Four gateways with one replica of 8 seats have 8 seats; what each counts for itself is summed all the same."""
    first = '# TYPE g gauge\nwarmlane_replica_seats{replica="a"} 8.0\nwarmlane_gateways 2.0\n'
    first += 'warmlane_gateways_degraded 1.0\nwarmlane_queue_depth{m="x"} 1.0\nwarmlane_bulk_seats{replica="a"} 3.0\n'
    second = first.replace("3.0", "5.0").replace("2.0", "1.0")
    assert summed_exposition([first, second]) == (
        '# TYPE g gauge\nwarmlane_replica_seats{replica="a"} 8.0\nwarmlane_gateways 2.0\n'
        'warmlane_gateways_degraded 2.0\nwarmlane_queue_depth{m="x"} 2.0\nwarmlane_bulk_seats{replica="a"} 5.0\n'
    )


def test_replicas_are_shown_once_with_what_all_gateways_have_there():
    """A replica's row of the admin plane is the node's, not one process's."""

    def seen(name, number):
        counts = {"in_flight": {"interactive": number, "bulk": 1}, "outstanding_tokens": 10 * number}
        return {"name": name, "state": "ready", "seats": 8, **counts}

    first = {"data": [seen("a", 1)], "next_cursor": None}
    second = {"data": [seen("a", 2), seen("b", 5)], "next_cursor": None}
    assert merged_replicas([first, second]) == {
        "data": [{**seen("a", 3), "in_flight": {"interactive": 3, "bulk": 2}}, seen("b", 5)],
        "next_cursor": None,
    }


@pytest.mark.parametrize("order", [1, -1])
def test_a_replica_that_any_gateway_holds_back_is_shown_as_held_back(order):
    """Each judges by what it saw itself."""
    held = {"kind": "ejected", "because": "late", "share": 0.0, "left_s": 3.0}
    counts = {"in_flight": {}, "outstanding_tokens": 0}
    rows = [{"name": "a", **counts, "held_back": None}, {"name": "a", **counts, "held_back": held}][::order]
    [shown] = merged_replicas([{"data": [row], "next_cursor": None} for row in rows])["data"]
    assert shown["held_back"] == held
