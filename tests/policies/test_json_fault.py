"""What a reader of JSON says of a body, said again for whoever wrote it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.json_fault import plainly
from policies.limits import LimitsError, parse_limits

FAULTS = [
    ('{"rpm": -1}', "rpm must be at least 0"),
    ('{"rpm": "5"}', "rpm must be a whole number or null, not text"),
    ('{"rpm": 1e400}', "rpm is out of range"),
    ('{"rmp": 5}', "there is no field 'rmp'"),
    ('{"concurrency": {"fast": 1}}', "there is no field 'fast'"),
    ('{"concurrency": 1}', "concurrency must be an object or null, not a whole number"),
    ('{"max_lane": "fast"}', "max_lane must be one of its values, not 'fast'"),
    ('{"weight": 0}', "weight must be at least 0.01"),
    ('{"sharing_group": ""}', "sharing_group has characters that may not be in it"),
    ("[]", "it must be an object, not a list"),
    ("{", "it is no whole JSON"),
]


@pytest.mark.parametrize(("document", "sentence"), FAULTS)
def test_a_fault_of_a_limits_document_is_said_in_plain_words(document, sentence):
    """The field first, then what it must be; no types of a language, no paths."""
    with pytest.raises(LimitsError) as error:
        parse_limits(document.encode())
    assert str(error.value) == f"not a limits document: {sentence}"


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """A body with every kind of bound."""

    name: str
    short: msgspec.Raw | None = None


def test_a_field_that_is_missing_is_named():
    """And not the type that lacks it."""
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.json.decode(b"{}", type=Body)
    assert plainly(str(error.value), None) == "the field 'name' is missing"


@given(st.text(max_size=200), st.one_of(st.none(), st.text(max_size=20)))
def test_what_is_not_known_is_passed_on_without_marks(fault, field):
    """A library's new sentence is better than none."""
    assert "`" not in plainly(fault, field) or "`" in (field or "") or "`" in fault
