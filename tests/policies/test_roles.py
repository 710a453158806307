"""Role x action x place: what is allowed, and that nothing is handed out that the giver does not have."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.roles import (
    ACTIONS,
    EVERYWHERE,
    Action,
    Grant,
    Place,
    grants_of_key,
    may,
    may_hand_out,
    may_somewhere,
    widest,
)
from policies.tenant import Role

OWN = Place("org_a", "proj_a")
BESIDE = Place("org_a", "proj_b")
FOREIGN = Place("org_b", "proj_c")
PLACES = (EVERYWHERE, Place("org_a"), OWN, BESIDE, Place("org_b"), FOREIGN)

roles = st.sampled_from(Role)
places = st.sampled_from(PLACES)
some_grants = st.lists(st.builds(Grant, roles, places), max_size=4).map(tuple)


def test_every_role_has_its_actions_and_service_none():
    """A role without an entry would be a KeyError in a request."""
    assert set(ACTIONS) == set(Role)
    assert ACTIONS[Role.SERVICE] == frozenset()
    assert ACTIONS[Role.PLATFORM_ADMIN] == frozenset(Action)


@pytest.mark.parametrize("role", [Role.ORGANIZATION_ADMIN, Role.PROJECT_ADMIN, Role.VIEWER, Role.SERVICE])
def test_only_platform_admins_touch_an_organisation_or_what_runs(role):
    """Only they may widen an organisation; its own admin may not, wherever the grant is."""
    assert not ACTIONS[role] & {Action.MANAGE_ORGANIZATIONS, Action.OPERATE}


def test_a_place_holds_what_lies_within_and_nothing_beside_or_above():
    """An organisation its projects, a project itself, the installation everything."""
    holding = {(a, b) for a, b in itertools.product(PLACES, PLACES) if a.holds(b)}
    for one in PLACES:
        assert (EVERYWHERE, one) in holding
        assert (one, one) in holding
    assert (Place("org_a"), BESIDE) in holding
    assert len(holding) == 6 + 5 + 3


def test_a_key_reaches_as_far_as_its_role():
    """The key of a project may speak for the organisation only with that role."""
    (admin,) = grants_of_key({Role.ORGANIZATION_ADMIN}, OWN)
    assert admin.place == Place("org_a")
    assert may((admin,), Action.MANAGE_PROJECTS, BESIDE)
    assert not may((admin,), Action.MANAGE_PROJECTS, FOREIGN)
    (project,) = grants_of_key({Role.PROJECT_ADMIN}, OWN)
    assert may((project,), Action.MANAGE_KEYS, OWN)
    assert not may((project,), Action.MANAGE_KEYS, BESIDE)
    assert not may((project,), Action.READ, Place("org_a"))


@pytest.mark.parametrize(
    ("giver", "given_out", "is_allowed"),
    [
        (Role.PROJECT_ADMIN, {Role.SERVICE}, True),
        (Role.PROJECT_ADMIN, {Role.VIEWER, Role.PROJECT_ADMIN}, True),
        (Role.PROJECT_ADMIN, {Role.ORGANIZATION_ADMIN}, False),
        (Role.PROJECT_ADMIN, {Role.SERVICE, Role.PLATFORM_ADMIN}, False),
        (Role.ORGANIZATION_ADMIN, {Role.ORGANIZATION_ADMIN, Role.PROJECT_ADMIN, Role.VIEWER}, True),
        (Role.ORGANIZATION_ADMIN, {Role.PLATFORM_ADMIN}, False),
        (Role.VIEWER, {Role.PROJECT_ADMIN}, False),
        (Role.PLATFORM_ADMIN, set(Role), True),
    ],
)
def test_nobody_hands_out_more_than_they_have(giver, given_out, is_allowed):
    """Making a key, or renewing its secret, must not be a way up."""
    assert may_hand_out(grants_of_key({giver}, OWN), given_out, OWN) is is_allowed


@given(grants=some_grants, given_out=st.frozensets(roles), place=st.sampled_from([OWN, BESIDE, FOREIGN]))
@settings(max_examples=300, deadline=None)
def test_what_may_be_handed_out_gives_no_action_anywhere_that_the_giver_lacks(grants, given_out, place):
    """For every action and place: if the new key may, the giver may."""
    if may_hand_out(grants, given_out, place):
        key = grants_of_key(given_out, place)
        for action, where in itertools.product(Action, PLACES):
            assert not may(key, action, where) or may(grants, action, where)


@given(grants=some_grants, action=st.sampled_from(Action), place=places)
@settings(max_examples=300, deadline=None)
def test_the_widest_places_say_the_same_as_every_grant(grants, action, place):
    """A list that is narrowed to them shows neither more nor less; none lies within another."""
    found = widest(grants, action)
    assert any(one.holds(place) for one in found) == may(grants, action, place)
    assert bool(found) == may_somewhere(grants, action)
    assert not any(one != other and one.holds(other) for one in found for other in found)
