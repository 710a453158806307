"""What the environment says to nobody, and what it was expected to say."""

import pytest

from gateway.admin_settings import AlertsSection
from gateway.environment import OWN_NAMES, overlooked
from gateway.settings import ReplicaSection, Settings

REPLICA = ReplicaSection(name="far", model="m", engine="openai", url="http://127.0.0.1:1", api_key_env="FAR_KEY")


@pytest.mark.parametrize(
    "name",
    [*OWN_NAMES, "WARMLANE_GATEWAY__PORT", "WARMLANE_MODELS", "warmlane_lanes__bulk__queue", "PATH", "XWARMLANE_A"],
)
def test_known_and_foreign_names_are_no_matter(name):
    """The settings' own check looks below a section."""
    assert list(overlooked(Settings(), {name: "x"})) == []


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("WARMLANE_PROT", "WARMLANE_PORT"),
        ("WARMLANE_GATEWY__PORT", "WARMLANE_GATEWAY"),
        ("WARMLANE_ZZZ_QQQ_KKK_JJJ_VVV", None),
    ],
)
def test_an_unknown_name_is_said_with_what_it_may_have_meant(name, near):
    """Silence would let a typing error live for years."""
    [sentence] = overlooked(Settings(), {name: "x"})
    assert sentence.startswith(f"{name} is no setting of Warmlane")
    assert ("did you mean" in sentence) == (near is not None)
    assert near is None or sentence.endswith(f"did you mean {near}?")


def test_a_name_that_the_settings_give_is_known():
    """Where a secret is, is for the operator to say; the documents' own example begins with our prefix."""
    alerts = AlertsSection(webhook_url="https://hooks.example.com/x", webhook_secret_env="WARMLANE_WEBHOOK_SECRET")
    replica = REPLICA.model_copy(update={"api_key_env": "WARMLANE_FAR_KEY"})
    environment = {"WARMLANE_WEBHOOK_SECRET": "x" * 16, "WARMLANE_FAR_KEY": "k"}
    assert list(overlooked(Settings(alerts=alerts, replicas=(replica,)), environment)) == []


@pytest.mark.parametrize(("environment", "is_said"), [({}, True), ({"FAR_KEY": " "}, True), ({"FAR_KEY": "k"}, False)])
def test_a_replicas_key_that_is_not_there_is_said(environment, is_said):
    """Else the engine's 401 is the first one hears of it."""
    said = list(overlooked(Settings(replicas=(REPLICA,)), environment))
    assert said == (["the replica far is asked without a key: FAR_KEY is not set"] if is_said else [])
