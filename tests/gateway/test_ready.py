"""What is said when all is ready."""

import json
import stat

from gateway.ready import Readiness

READY = Readiness(
    url="http://127.0.0.1:8080/v1",
    key="wl-0123abcd-secret",
    model="demo",
    admin="http://127.0.0.1:8081",
    admin_token="token-token-token",
)


def test_the_line_has_the_form_of_the_contract():
    """Scripts split it."""
    assert str(READY.line()) == (
        "ready url=http://127.0.0.1:8080/v1 key=wl-0123abcd-secret model=demo "
        "admin=http://127.0.0.1:8081 admin_token=token-token-token"
    )


def test_a_line_without_a_model_leaves_it_out():
    """`warmlane gateway` without replicas has none."""
    assert "model" not in str(Readiness("u", "k", "", "a", "t").line())


def test_demo_json_has_the_same_fields_and_is_private(tmp_path):
    """Programs read it instead of the line."""
    READY.write(tmp_path / "demo.json")
    content = json.loads((tmp_path / "demo.json").read_text())
    assert content == dict(READY.line().fields)
    assert stat.S_IMODE((tmp_path / "demo.json").stat().st_mode) == 0o600


def test_the_greeting_has_a_request_that_can_be_pasted():
    """A person's first step; and how to stop."""
    greeting = READY.greeting(2)
    assert "with 2 workers. Ctrl-C stops it." in greeting
    body = json.loads(greeting.split("-d '")[1].split("'")[0])
    assert body["model"] == "demo"
    assert READY.key in greeting
    assert "with 1 worker." in READY.greeting(1)
    assert "worker" not in READY.greeting(0)
