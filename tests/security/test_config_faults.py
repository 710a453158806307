"""P44: a file that goes bad while Warmlane runs changes nothing, drops nothing, and is in nobody's way afterwards.

All or nothing: a bad file leaves the settings in force, is told in the log and in the answer, and the next good one, the
very same text too, is taken without a restart. A gateway process that falls meanwhile comes back with what is in force.
"""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.security.conftest import ADMIN_TOKEN, IN_LEDGER, ask, bearer, record_of
from tests.warmlane_process import commands, until

pytestmark = pytest.mark.e2e

GOOD = """
[telemetry]
log_level = "info"
[[workers]]
model = "fake-model"
engine = "fake"
"""


class Reloadable:
    """A running system, its file, and how often it was asked while the file was in each state."""

    def __init__(self, running):
        self.running = running
        self.file = next(running.home.parent.glob("config-*.toml"))
        self.admin = tuple(_address(running.fields["admin"]))

    def config(self):
        """What is in force."""
        return ask(self.admin, "GET", "/admin/v1/config", bearer(ADMIN_TOKEN)).body

    def reload(self):
        """The answer to a wish by HTTP."""
        return ask(self.admin, "POST", "/admin/v1/config/reload", bearer(ADMIN_TOKEN))

    def state(self):
        """How often it changed, and what is wrong with it now."""
        return self.running.admin("/statistics")["config"]

    def metrics(self):
        """As a scraper sees them."""
        return ask(self.admin, "GET", "/metrics", bearer(ADMIN_TOKEN)).body.decode()

    def hang_up(self, event):
        """Wish by SIGHUP, and wait until the log has one more of this event."""
        seen = self.running.stderr.count(event)
        self.running.process.send_signal(signal.SIGHUP)
        self.running.until(lambda: self.running.stderr.count(event) > seen)


def _address(url):
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    """`warmlane up` with a fake worker and a file that the tests spoil."""
    home = tmp_path_factory.mktemp("config") / "home"
    with commands(home) as start:
        running = start("up", config=GOOD, env={"WARMLANE_ADMIN_TOKEN": ADMIN_TOKEN})
        running.home = home
        running.until_ready()
        yield Reloadable(running)
        assert running.end() == 0, running.stderr


def replaced(path, text):
    """As an editor does it: a new file takes the name."""
    other = path.with_suffix(".new")
    other.write_text(text)
    other.replace(path)


def switched(path, text):
    """As Kubernetes does it: the name is a link, and the link is switched."""
    target = path.with_suffix(".linked")
    target.write_text(text)
    link = path.with_suffix(".link")
    link.symlink_to(target)
    link.replace(path)


SPOILS = {
    "no toml": lambda path: path.write_text("[gateway\n"),
    "bad value": lambda path: path.write_text(GOOD.replace('"info"', '"loud"')),
    "unknown key": lambda path: path.write_text("free_lunch = true\n" + GOOD),
    "half": lambda path: path.write_text(GOOD[: len(GOOD) - 9]),
    "deleted": lambda path: path.unlink(),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "replaced by a bad one": lambda path: replaced(path, "x"),
    "a link to a bad one": lambda path: switched(path, "x"),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_bad_file_is_refused_as_a_whole_and_the_next_good_one_is_taken(system, spoil):
    """Whatever the file has become: the same settings, every request answered, and no restart to come out of it."""
    before, generation = system.config(), system.state()["generation"]
    SPOILS[spoil](system.file)
    try:
        assert system.running.chat().status_code == 200
        answer = system.reload()
        assert answer.status == 400, answer
        assert system.file.name.encode() in answer.body
        system.hang_up("config.not_reloaded")
        assert system.config() == before
        assert system.file.name in system.state()["fault"]
        assert "\nwarmlane_config_refused 1.0\n" in system.metrics()
        assert system.running.chat().status_code == 200
    finally:
        system.file.rmdir() if system.file.is_dir() else system.file.unlink(missing_ok=True)
        system.file.write_text(GOOD)
    answer = system.reload()  # the very same old text
    assert (answer.status, json.loads(answer.body)["changed"]) == (200, [])
    assert system.config() == before
    assert system.state() == {"generation": generation, "fault": None}
    assert "\nwarmlane_config_refused 0.0\n" in system.metrics()


def test_a_good_file_is_in_force_at_once_and_a_bad_one_after_it_changes_nothing(system):
    """The order of a bad day: right, wrong, right again; by either way of asking."""
    system.file.write_text(GOOD.replace('"info"', '"warning"'))
    try:
        assert json.loads(system.reload().body)["changed"] == ["telemetry.log_level"]
        assert b'"warning"' in system.config()
        SPOILS["no toml"](system.file)
        assert system.reload().status == 400
        assert b'"warning"' in system.config()
    finally:
        system.file.write_text(GOOD)
        system.reload()
    assert b'"info"' in system.config()
    system.file.write_text("")  # valid: the defaults; what cannot change while it runs is named and waits
    try:
        assert json.loads(system.reload().body)["needs_restart"] == ["workers"]
        assert system.running.chat().status_code == 200
    finally:
        system.file.write_text(GOOD)
        system.hang_up("config.reloaded")


@pytest.mark.parametrize("spoil", ["no toml", "bad value", "deleted"])
def test_a_gateway_that_is_started_again_has_the_settings_in_force(system, spoil):
    """A crash must not turn a typo, made days before, into an outage."""
    SPOILS[spoil](system.file)
    try:
        child = system.running.child("gateway.process")
        child.kill()
        until(lambda: _is_served(system), lambda: system.running.stderr[-3000:])
    finally:
        system.file.unlink(missing_ok=True)
        system.file.write_text(GOOD)


def _is_served(system):
    try:
        return system.running.chat().status_code == 200
    except Exception:
        return False


def test_aliases_and_prices_are_in_force_without_a_restart_and_nothing_is_dropped(system):
    """By the endpoint, while requests run; the ledger has what they cost at the price of their time."""
    priced = (
        GOOD
        + """
[[models]]
name = "fake-model"
aliases = ["fast"]
price_in = 1000
price_out = 1000
[lanes.bulk]
weight = 2
queue = 7
"""
    )
    system.file.write_text(priced)
    try:
        with ThreadPoolExecutor() as pool:
            answers = [pool.submit(system.running.chat) for _ in range(12)]
            found = json.loads(system.reload().body)
            assert {one.result().status_code for one in answers} == {200}
        assert found == {"changed": ["lanes.bulk.queue", "lanes.bulk.weight", "models"], "needs_restart": []}
        answer = system.running.chat(model="fast")
        assert answer.status_code == 200
        row = record_of(system, answer.headers["x-request-id"], IN_LEDGER)
        assert json.loads(row.body)["cost_usd"] > 0
    finally:
        system.file.write_text(GOOD)
        system.reload()
    assert system.running.chat(model="fast").status_code == 404


def test_a_reload_by_either_way_is_in_the_audit_log(system):
    """By the endpoint with who asked, by a signal as the system's."""
    system.reload()
    system.hang_up("config.reloaded")

    def is_told():
        rows = system.running.admin("/audit?action=config.reloaded")["data"]
        return {"admin_token", "system"} <= {one["actor_kind"] for one in rows}

    until(is_told)
