"""Prefix diagnosis in words and tokens, and as the sum of several gateways."""

import pytest

from cache_affinity.diagnosis import PrefixDiagnosis
from cache_affinity.prefix import prefix_key
from cache_affinity.ratio import TokenRatios
from gateway.prefix_report import PlaceBody, PrefixList, PrefixRow, reports, summed_rows

PLACE = PlaceBody("message", 0, "system", None, 37, 37, 90, 90 * 1590)


def row(*places, prompts=100, **changes):
    """A row of 100 prompts."""
    given = {"id": "p:m", "project_id": "p", "organization_id": "o", "model": "m", "last_at": 5.0}
    given |= {"repeated": 1, "grew": 2, "lost_tokens": sum(place.lost_tokens for place in places)} | changes
    return PrefixRow(prompts=prompts, places=list(places), finding="", **given)


def finding(*places, **changes):
    """What two gateways that saw half of it each say together."""
    [one] = summed_rows([PrefixList([row(*places, **changes)]), PrefixList([row(prompts=0)])])
    return one.finding


def test_a_date_in_the_system_prompt_is_told_with_its_byte_and_its_cost():
    """The sentence that an operator sends to the team."""
    assert finding(PLACE) == (
        "most prompts differ from the one before in message 0 (system) at byte 37: 1,590 tokens read again a request; "
        "likely a date or id near the start: put it at the end, or leave it out"
    )


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (PlaceBody("tools", None, None, None, 0, 1023, 30, 30000), "30% of the prompts differ from the one before in "),
        (PlaceBody("tools", None, None, None, 0, 1023, 30, 30000), "in tools between bytes 0 and 1023: 1,000 tokens"),
        (PlaceBody("tools", None, None, None, 0, 1023, 30, 30000), "a request; likely tools in another order"),
        (PlaceBody("message", 4, "user", 1, 5, 5, 60, 60000), "message 4 (user, part 1) at byte 5"),
        (PlaceBody("prompt", None, None, None, 900, 900, 60, 6000), "put what changes behind what stays"),
        (PlaceBody("message", 1, "user", None, 0, 0, 60, 100), "hardly anything behind that came before"),
        (PlaceBody("message", 1, "user", None, 0, 0, 4, 10000), "nothing is lost"),
    ],
)
def test_other_places_are_told_by_what_they_are(place, said):
    """Also when there is nothing to repair."""
    assert said in finding(place)


def test_a_rare_place_that_loses_most_does_not_hide_a_frequent_one():
    """It is too rare for a word; the other is what the team can repair, and not nothing."""
    rare = PlaceBody("message", 3, "user", None, 0, 1023, 4, 400_000)
    assert "message 0 (system) at byte 37: 1,590 tokens read again" in finding(rare, PLACE)


def test_rows_of_several_gateways_are_summed():
    """Counts add up, and the byte is told as the one knows it who knows it best."""
    wide = PlaceBody("message", 0, "system", None, 0, 1023, 10, 100)
    other = PlaceBody("message", 3, "user", None, 0, 1023, 5, 10**6)
    answers = [PrefixList([row(PLACE)]), PrefixList([row(wide, other, last_at=9.0)]), PrefixList([row(id="a:m")])]
    first, second = summed_rows(answers)
    assert (first.id, second.id) == ("a:m", "p:m")
    assert (second.prompts, second.repeated, second.grew, second.last_at) == (200, 2, 4, 9.0)
    assert [(one.message, one.from_byte, one.to_byte, one.prompts) for one in second.places] == [
        (3, 0, 1023, 5), (0, 37, 37, 100),
    ]  # fmt: skip
    assert second.lost_tokens == PLACE.lost_tokens + 100 + 10**6


def test_other_bytes_of_the_same_message_are_places_of_their_own():
    """Two gateways that each know a byte do not mean the same by it."""
    other = PlaceBody("message", 0, "system", None, 44, 44, 10, 100)
    [summed] = summed_rows([PrefixList([row(PLACE)]), PrefixList([row(other)])])
    assert [(one.from_byte, one.prompts) for one in summed.places] == [(37, 90), (44, 10)]


def test_bytes_become_tokens_by_what_was_learned_of_the_model():
    """And times become Unix seconds."""
    diagnosis, ratios = PrefixDiagnosis(), TokenRatios()
    for _ in range(200):
        ratios.of("m").observe(8000, 4000)
    for number in range(3):
        segments = [b"%d" % number + b"x" * 3999]
        diagnosis.note("p", "o", "m", prefix_key("m", "s", segments), segments, now=100.0 + number)
    [told] = reports(diagnosis, ratios, now=110.0, unix=1_000_110.0).data
    assert (told.prompts, told.last_at, told.lost_tokens) == (2, 1_000_102.0, 4000)
    [place] = told.places
    assert (place.prompts, place.from_byte) == (2, 0)
