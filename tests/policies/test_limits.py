"""The limits document: strict about what it takes, exact about what follows from two levels."""

import contextlib
import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.lane import Lane
from policies.limits import (
    CLOSED,
    MAX_DOCUMENT_BYTES,
    LimitsError,
    SurfacePath,
    effective,
    encode_limits,
    parse_limits,
)
from policies.tenant import Limits


def doc(text: str = "{}"):
    return parse_limits(text.encode())


NOT_NUMBERS = ["NaN", "Infinity", "-Infinity", "1e309", '"5"', "true", "1" * 30, "5.5", "-1", "[]", "{}", "1.0"]


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_a_budget_that_is_not_a_count_is_refused_by_name(value):
    """P15: a bad number must be refused with its field, never read as no limit."""
    with pytest.raises(LimitsError) as refusal:
        doc('{"models": ["a"], "rpm": ' + value + "}")
    assert refusal.value.field == "rpm"


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_a_bad_number_inside_concurrency_is_refused_by_name(value):
    """P15 one level deeper."""
    with pytest.raises(LimitsError) as refusal:
        doc('{"concurrency": {"bulk": ' + value + "}}")
    assert refusal.value.field in {"concurrency.bulk", "bulk"}


@pytest.mark.parametrize("name", ["tpm", "tokens_per_day"])
@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_a_token_budget_that_is_not_a_count_is_refused_by_name(value, name):
    """P15 for the other counts."""
    with pytest.raises(LimitsError) as refusal:
        doc('{"models": ["a"], "' + name + '": ' + value + "}")
    assert refusal.value.field == name


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "1e309", '"5"', "true", "1" * 30, "-1", "-0.5", "1e10", "[]", "{}"]
)
def test_money_that_is_no_amount_is_refused_by_name(value):
    """P15: dollars may have decimals, and nothing else that a count may not have."""
    with pytest.raises(LimitsError) as refusal:
        doc('{"models": ["a"], "usd_per_month": ' + value + "}")
    assert refusal.value.field == "usd_per_month"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("time_zone", '"Mars/Olympus"'),
        ("time_zone", '"../../etc/passwd"'),
        ("time_zone", '"Europe"'),
        ("time_zone", '""'),
        ("time_zone", "5"),
        ("time_zone", '"localtime"'),
        ("time_zone", '"right/UTC"'),
        ("cached_token_discount", "1.1"),
        ("cached_token_discount", "-0.1"),
        ("cached_token_discount", '"0.5"'),
        ("shadow", "1"),
        ("shadow", '"true"'),
        ("surfaces[0]", '["/v1/chat"]'),
        ("surfaces", '"/v1/completions"'),
        ("sharing_group", '""'),
        ("sharing_group", '"a/b"'),
        ("sharing_group", '"' + "a" * 65 + '"'),
    ],
)
def test_what_is_out_of_its_bounds_is_refused_by_name(field, value):
    """What cannot be enforced as written is not stored."""
    with pytest.raises(LimitsError) as refusal:
        doc('{"rpm": 1, "' + field.removesuffix("[0]") + '": ' + value + "}")
    assert refusal.value.field == field


@pytest.mark.parametrize("field", ["tpm", "tokens_per_day", "usd_per_month"])
@pytest.mark.parametrize(
    ("above", "own", "holds"),
    [
        (None, None, None),
        ("500", None, 500),
        ("10", "20", 10),
        ("10", "5", 5),
        ("0", "5", 0),
        ("10", "null", 10),
        ("null", "5", 5),
    ],
)
def test_budgets_are_narrowed_as_counts_are(field, above, own, holds):
    """The smaller one holds, and null lifts no level above."""
    levels = [doc("{}" if value is None else '{"' + field + '": ' + value + "}") for value in (above, own)]
    assert getattr(effective(*levels), field) == holds


@pytest.mark.parametrize(
    ("field", "default", "word", "other"),
    [
        ("time_zone", "UTC", "Asia/Tokyo", "Europe/Berlin"),
        ("shadow", False, True, True),
        ("sharing_group", None, "team", "others"),
    ],
)
def test_the_lowest_level_that_names_it_decides(field, default, word, other):
    """What is no amount cannot be narrowed: a project has its own calendar, shadow and group."""

    def level(value):
        return parse_limits(msgspec.json.encode({} if value is ... else {field: value}))

    for levels, holds in [((..., ...), default), ((word, ...), word), ((word, other), other), ((word, None), default)]:
        assert getattr(effective(*map(level, levels)), field) == holds


@pytest.mark.parametrize(
    ("above", "own", "holds"), [("{}", "0.5", 0.5), ("0.2", "0.5", 0.2), ("0.5", "0.2", 0.2), ("0.5", "{}", 0.5)]
)
def test_the_smallest_discount_holds(above, own, holds):
    """A bigger one would widen what the level above allows."""
    levels = [doc(one if one == "{}" else '{"cached_token_discount": ' + one + "}") for one in (above, own)]
    assert effective(*levels).cached_token_discount == holds


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"rmp": 1}', "rmp"),
        ('{"concurrency": {"batch": 1}}', "concurrency.batch"),
        ('{"max_lane": "fast"}', "max_lane"),
        ('{"models": "a"}', "models"),
        ('{"models": [""]}', "models[0]"),
        ('{"max_lane": "standard", "default_lane": "interactive"}', "default_lane"),
        ("[]", None),
        ("", None),
        ("null", None),
        ('{"rpm": 1', None),
        ("{" * 100_000, None),
    ],
)
def test_what_is_not_a_limits_document_is_refused(text, field):
    """A misspelt limit would otherwise silently be none."""
    with pytest.raises(LimitsError) as refusal:
        doc(text)
    assert refusal.value.field == field


def test_a_document_beyond_the_bound_is_refused():
    """A document is read at every directory refresh, so its size is bounded."""
    with pytest.raises(LimitsError, match="at most"):
        parse_limits(b" " * (MAX_DOCUMENT_BYTES + 1))


def test_invalid_utf8_is_refused():
    """Bytes that are no text must not become an error of ours."""
    with pytest.raises(LimitsError):
        parse_limits(b'{"models": ["\xff"]}')


def test_absent_and_null_survive_encoding():
    """Absent and null mean different things, so writing a document must keep them apart."""
    text = b'{"rpm":null,"concurrency":{"bulk":null},"models":[],"max_lane":"standard"}'
    assert encode_limits(parse_limits(text)) == text


def test_without_any_setting_there_are_no_limits_and_interactive_lanes():
    """The contract's defaults."""
    assert effective(doc(), doc()) == Limits()


@pytest.mark.parametrize(
    ("above", "own", "rpm"),
    [
        ("{}", "{}", 100),
        ('{"rpm": 500}', "{}", 500),
        ('{"rpm": null}', "{}", None),
        ("{}", '{"rpm": null}', None),
        ("{}", '{"rpm": 0}', 0),
        ('{"rpm": 10}', '{"rpm": null}', 10),
        ('{"rpm": 10}', '{"rpm": 20}', 10),
        ('{"rpm": 10}', '{"rpm": 5}', 5),
        ('{"rpm": 0}', '{"rpm": 5}', 0),
        ('{"rpm": null}', '{"rpm": 5}', 5),
    ],
)
def test_a_level_may_lift_the_default_but_only_narrow_the_level_above(above, own, rpm):
    """Absent inherits, null lifts the default, a number above another level's changes nothing."""
    assert effective(doc(above), doc(own), default=Limits(rpm=100)).rpm == rpm


def test_each_lane_is_inherited_by_itself():
    """Setting one lane must not lift another's limit."""
    limits = effective(
        doc('{"concurrency": {"interactive": 8, "bulk": 4}}'),
        doc('{"concurrency": {"bulk": 2, "standard": 0, "interactive": null}}'),
        default=Limits(concurrency={Lane.STANDARD: 9}),
    )
    assert limits.concurrency == {Lane.INTERACTIVE: 8, Lane.STANDARD: 0, Lane.BULK: 2}


def test_concurrency_of_null_lifts_the_default_of_every_lane():
    """null for the whole is null for each."""
    default = Limits(concurrency=dict.fromkeys(Lane, 3))
    assert effective(doc('{"concurrency": null}'), default=default).concurrency is None


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_a_bad_number_inside_batch_cap_is_refused_by_name(value):
    """P15: seats are counted, and a bad count must not read as none."""
    with pytest.raises(LimitsError) as refusal:
        doc('{"batch_cap": {"interactive": ' + value + "}}")
    assert refusal.value.field in {"batch_cap.interactive", "interactive"}


@pytest.mark.parametrize(
    ("above", "own", "batch_cap"),
    [
        ("{}", "{}", {Lane.BULK: 9}),
        ('{"batch_cap": {"bulk": 4}}', "{}", {Lane.BULK: 4}),
        ('{"batch_cap": {"bulk": 4}}', '{"batch_cap": {"bulk": 8}}', {Lane.BULK: 4}),
        ('{"batch_cap": {"bulk": 4}}', '{"batch_cap": {"bulk": 2}}', {Lane.BULK: 2}),
        ('{"batch_cap": {"bulk": 4}}', '{"batch_cap": null}', {Lane.BULK: 4}),
        ('{"batch_cap": {"bulk": 0}}', '{"batch_cap": {"interactive": 1}}', {Lane.INTERACTIVE: 1, Lane.BULK: 0}),
        ('{"batch_cap": {"bulk": null}}', "{}", None),
        ("{}", '{"batch_cap": null}', None),
        ("{}", '{"batch_cap": {"bulk": 20}}', {Lane.BULK: 20}),
    ],
)
def test_a_batch_cap_is_narrowed_by_the_organisation_lane_by_lane(above, own, batch_cap):
    """As every count: the smaller one holds, null lifts only the default."""
    assert effective(doc(above), doc(own), default=Limits(batch_cap={Lane.BULK: 9})).batch_cap == batch_cap


@pytest.mark.parametrize("value", ["0", "0.009", "-1", "100.1", "1e309", "NaN", '"2"', "true", "[]"])
def test_a_weight_out_of_its_bounds_is_refused_by_name(value):
    """A weight of 0 would starve a tenant, an endless one all the others."""
    with pytest.raises(LimitsError) as refusal:
        doc('{"rpm": 1, "weight": ' + value + "}")
    assert refusal.value.field == "weight"


@pytest.mark.parametrize(
    ("above", "own", "weight"),
    [
        ("{}", "{}", 1.0),
        ('{"weight": 3}', "{}", 3.0),
        ('{"weight": 3}', '{"weight": 5.5}', 5.5),
        ('{"weight": 3}', '{"weight": 0.01}', 0.01),
        ('{"weight": 3}', '{"weight": null}', 1.0),
        ('{"weight": null}', "{}", 1.0),
        ("{}", '{"weight": 100}', 100.0),
    ],
)
def test_the_lowest_level_that_names_a_weight_decides(above, own, weight):
    """A share is no budget: the organisation's is where its projects start, and null is as if nobody had named one."""
    assert effective(doc(above), doc(own)).weight == weight


def test_only_surfaces_that_every_level_allows_remain():
    """A project of an organisation that may chat alone must not open another surface for itself."""
    chat, completions = "/v1/chat/completions", "/v1/completions"
    both, own = doc(f'{{"surfaces": ["{chat}", "{completions}"]}}'), doc(f'{{"surfaces": ["{chat}"]}}')
    assert effective(both, own).surfaces == effective(own, both).surfaces == {chat}
    assert effective(own, doc('{"surfaces": null}')).surfaces == {chat}
    assert effective(both, doc('{"surfaces": []}')).surfaces == frozenset()
    assert effective(doc("{}")).surfaces is None


@pytest.mark.parametrize(
    ("above", "own", "models"),
    [
        ("{}", "{}", None),
        ('{"models": ["a", "b"]}', "{}", {"a", "b"}),
        ('{"models": ["a", "b"]}', '{"models": ["b", "c"]}', {"b"}),
        ('{"models": ["a"]}', '{"models": null}', {"a"}),
        ('{"models": ["a"]}', '{"models": []}', set()),
    ],
)
def test_only_models_that_every_level_allows_remain(above, own, models):
    """A project must not allow itself a model its organisation does not have."""
    assert effective(doc(above), doc(own)).models == models


@pytest.mark.parametrize(
    ("above", "own", "lanes"),
    [
        ("{}", "{}", (Lane.INTERACTIVE, Lane.INTERACTIVE)),
        ('{"max_lane": "standard"}', '{"max_lane": "interactive"}', (Lane.STANDARD, Lane.STANDARD)),
        ('{"max_lane": "standard"}', '{"max_lane": null, "default_lane": "bulk"}', (Lane.STANDARD, Lane.BULK)),
        ('{"default_lane": "bulk"}', '{"default_lane": null}', (Lane.INTERACTIVE, Lane.INTERACTIVE)),
        ('{"default_lane": "bulk"}', "{}", (Lane.INTERACTIVE, Lane.BULK)),
        ("{}", '{"max_lane": "bulk"}', (Lane.BULK, Lane.BULK)),
    ],
)
def test_the_default_lane_never_stands_above_the_highest_lane(above, own, lanes):
    """A lower level narrows `max_lane`, and an inherited default is brought down with it."""
    limits = effective(doc(above), doc(own))
    assert (limits.max_lane, limits.default_lane) == lanes


def test_closed_limits_allow_nothing():
    """What stands in for a document that cannot be read must refuse everything."""
    assert (CLOSED.rpm, CLOSED.tpm, CLOSED.tokens_per_day, CLOSED.usd_per_month) == (0, 0, 0, 0)
    assert not CLOSED.shadow
    assert CLOSED.models == CLOSED.surfaces == frozenset()
    assert set(CLOSED.concurrency.values()) == {0}
    assert len(CLOSED.concurrency) == len(Lane)


COUNTS = st.none() | st.integers(0, 100)
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "rpm": COUNTS,
        "tpm": COUNTS,
        "tokens_per_day": COUNTS,
        "usd_per_month": st.none() | st.floats(0, 100),
        "concurrency": st.none() | st.dictionaries(st.sampled_from(["interactive", "standard", "bulk"]), COUNTS),
        "models": st.none() | st.lists(st.sampled_from("abc"), unique=True),
        "surfaces": st.none() | st.lists(st.sampled_from(get_args(SurfacePath)), unique=True),
        "max_lane": st.none() | st.sampled_from(["interactive", "standard", "bulk"]),
    },
)


@settings(deadline=None, max_examples=200)
@given(DOCUMENTS, DOCUMENTS)
def test_a_lower_level_never_widens(above, own):
    """Whatever a project sets, it may do nothing that its organisation's own limits forbid."""
    organization = parse_limits(msgspec.json.encode(above))
    high, low = effective(organization), effective(organization, parse_limits(msgspec.json.encode(own)))
    for name in ("rpm", "tpm", "tokens_per_day", "usd_per_month"):
        most, own_most = getattr(high, name), getattr(low, name)
        assert most is None or (own_most is not None and own_most <= most)
    assert high.models is None or (low.models is not None and low.models <= high.models)
    assert high.surfaces is None or (low.surfaces is not None and low.surfaces <= high.surfaces)
    assert low.max_lane.is_within(high.max_lane)
    for lane, most in (high.concurrency or {}).items():
        assert low.concurrency[lane] <= most


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,0123456789eE.-NaInfrpm', max_size=60).map(str.encode))
def test_any_bytes_give_a_document_or_a_limits_error(document):
    """The parser meets bytes from the network and from the store."""
    with contextlib.suppress(LimitsError):
        parse_limits(document)


def test_every_document_that_the_docs_show_can_be_set():
    """An example is copied before anything is read."""
    texts = [path.read_text() for path in [Path("README.md"), *Path("docs").glob("*.md")]]
    shown = [
        one
        for text in texts
        for one in re.findall(r"```json\n(\{.*?\})\n```|limits set [^'\n]*'(\{[^']*\})'", text, re.DOTALL)
    ]
    documents = [block or inline for block, inline in shown if '"rpm"' in block or inline]
    assert len(documents) >= 3
    for document in documents:
        parse_limits(document.encode())
