"""The configuration: every bad value is named, the environment wins, nothing is silently ignored."""

# ruff: noqa: F811  # fixtures of a module are named again where they are asked for

import pytest

from gateway.settings import Settings, load
from policies.lane import Lane
from tests.gateway.config_files import REPLICA, bare_environment, complaint, file  # noqa: F401  # fixtures


def test_without_a_file_the_defaults_hold():
    """Also with an empty one."""
    assert load(None) == Settings()
    assert load(None).gateway.port == 8080


def test_an_empty_file_is_the_defaults(file):
    """P44: empty is valid."""
    assert load(file("")) == Settings()


def test_everything_can_be_set(file):
    """One file with every section."""
    settings = load(
        file(
            """
            [gateway]
            host = "::1"
            port = 0
            drain_s = 5
            [telemetry]
            log_level = "debug"
            [timeouts]
            connect_s = 0.5
            [retries]
            max_attempts = 1
            budget_ratio = 0
            [lanes.bulk]
            max_wait_s = 10
            [[models]]
            name = "small-a"
            aliases = ["fast"]
            [[replicas]]
            name = "r1"
            model = "small-a"
            engine = "vllm"
            url = "http://127.0.0.1:8000/v1/"
            labels = { zone = "a" }
            [[workers]]
            model = "small-b"
            engine = "fake"
            """
        )
    )
    assert settings.models[0].aliases == ("fast",)
    assert settings.replicas[0].url == "http://127.0.0.1:8000"
    assert settings.workers[0].count == 1
    assert settings.timeouts.connect_s == 0.5


PRICED = '[[models]]\nname = "a"\n'


def test_a_model_has_a_price_or_none(file):
    """In USD per million tokens; the price of a cached token may be left to that of any."""
    priced = ("price_in = 0.15\nprice_out = 0.6\n", "price_in = 1\nprice_cached = 1\nprice_out = 0.5\n", "")
    models = [load(file(PRICED + lines)).models[0] for lines in priced]
    assert [(one.price_in, one.price_cached, one.price_out) for one in models] == [
        (0.15, None, 0.6),
        (1.0, 1.0, 0.5),
        (None, None, None),
    ]


@pytest.mark.parametrize(
    "lines",
    [
        "price_in = 1\n",
        "price_out = 1\n",
        "price_cached = 1\n",
        "price_in = -1\nprice_out = 1\n",
        "price_in = nan\nprice_out = 1\n",
        "price_in = inf\nprice_out = 1\n",
        'price_in = "1"\nprice_out = 1\n',
        "price_in = true\nprice_out = 1\n",
        "price_in = 1e309\nprice_out = 1\n",
        "price_in = 2e6\nprice_out = 1\n",
        "price_in = 1\nprice_cached = 1.001\nprice_out = 9\n",
    ],
)
def test_half_a_price_and_what_is_no_number_are_refused(file, lines):
    """P15: money is counted by it."""
    assert "price" in complaint(file(PRICED + lines))


def test_a_lane_keeps_its_other_defaults_when_one_key_is_set(file, monkeypatch):
    """Setting a queue must not take the reserved seat away."""
    monkeypatch.setenv("WARMLANE_LANES__STANDARD__QUEUE", "7")
    lanes = load(file("[lanes.interactive]\nqueue = 5\n[lanes.bulk]\nmax_wait_s = 10\n")).lanes
    assert (lanes.interactive.queue, lanes.interactive.reserved_seats, lanes.interactive.max_wait_s) == (5, 1, 60)
    assert (lanes.standard.queue, lanes.standard.max_wait_s, lanes.standard.reserved_seats) == (7, 300, 0)
    assert (lanes.bulk.queue, lanes.bulk.max_wait_s) == (10_000, 10)
    assert lanes.of(Lane.BULK) is lanes.bulk


NUMBERS = {
    "gateway.port": ("-1", "65536"),
    "gateway.admin_port": ("-1", "65536"),
    "gateway.processes": ("0", "65"),
    "gateway.max_body_mb": ("0", "1025"),
    "gateway.drain_s": ("-1", "86401"),
    "gateway.max_connections": ("0", "1000001"),
    "timeouts.connect_s": ("0", "86401"),
    "timeouts.first_token_s": ("0", "86401"),
    "timeouts.idle_s": ("0", "86401"),
    "timeouts.total_s": ("0", "86401"),
    "timeouts.keepalive_s": ("0", "86401"),
    "timeouts.head_s": ("0", "86401"),
    "timeouts.body_s": ("0", "86401"),
    "retries.max_attempts": ("0", "11"),
    "retries.budget_ratio": ("-0.1", "1.1"),
    "retries.replica_budget_ratio": ("-0.1", "1.1"),
    "outliers.max_ejected_share": ("-0.1", "0.6"),
    "outliers.first_s": ("0", "3601"),
    "outliers.max_s": ("0", "86401"),
    "slow_start.window_s": ("-1", "3601"),
    "hedging.max_share": ("-0.1", "0.6"),
    "hedging.quantile": ("0.4", "1"),
    "lanes.bulk.queue": ("-1", "1000001"),
    "lanes.bulk.max_wait_s": ("0", "86401"),
    "lanes.bulk.reserved_seats": ("-1", "10001"),
}


@pytest.mark.parametrize("key", NUMBERS)
def test_every_number_has_bounds_and_only_numbers_pass(file, key):
    """P15: no NaN, no infinity, no text and no boolean passes for a number."""
    section, _, name = key.rpartition(".")
    for value in (*NUMBERS[key], "nan", "inf", "-inf", "1e309", '"5"', "true", "[1]", "1979-05-27", "9" * 30):
        assert f': [{section}] "{name}" must be ' in complaint(file(f"[{section}]\n{name} = {value}\n")), value


@pytest.mark.parametrize(
    "text",
    [b"\xff", b"[gateway", b"port = ", b"a = 1\na = 2", b"a = " + b"[" * 10_000],
    ids=["utf8", "open", "no value", "twice", "deep"],
)
def test_what_is_not_toml_is_said_so(file, text):
    """P44: half a file must not start half a gateway."""
    assert "is not TOML" in complaint(file(text))


def test_a_missing_file_is_said_so(tmp_path):
    """As is a folder."""
    assert "cannot read" in complaint(tmp_path / "none.toml")
    assert "cannot read" in complaint(tmp_path)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("http://a", "http://a"),
        ("http://a/", "http://a"),
        ("http://a:8000/v1", "http://a:8000"),
        ("https://a.example/v1/", "https://a.example"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://a/base/v1", "http://a/base"),
        ("http://127.0.0.1:1/v2", "http://127.0.0.1:1/v2"),
    ],
)
def test_a_url_is_kept_without_v1(file, url, kept):
    """People paste either form."""
    assert load(file(REPLICA.format(url=url))).replicas[0].url == kept


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a:8000",
        "ftp://a",
        "file:///etc/passwd",
        "http://",
        "http:///x",
        "http://a?b",
        "http://a#b",
        "http://a b",
        "http://a\\n",
        "http://user:secret@a",
        "http://a:99999",
        "http://a:x",
        "http://[::1",
        "HTTP://a",
    ],
)
def test_a_url_that_cannot_be_connected_to_is_refused_before_the_start(file, url):
    """A check that passes must not be followed by a crash."""
    assert '"url": ' in complaint(file(REPLICA.format(url=url)))


def test_names_are_unique_among_replicas_and_among_models_with_their_aliases(file):
    """Two of a name would make one of them unreachable."""
    assert "replicas: the name r1" in complaint(file(REPLICA.format(url="http://a") * 2))
    assert "models: the name fast" in complaint(
        file('[[models]]\nname = "a"\naliases = ["fast"]\n[[models]]\nname = "fast"\n')
    )


def test_the_environment_wins_over_the_file(file, monkeypatch):
    """Key by key; the file's other keys stay."""
    monkeypatch.setenv("WARMLANE_GATEWAY__PORT", "9001")
    monkeypatch.setenv("warmlane_timeouts__idle_s", "1.5")
    monkeypatch.setenv("WARMLANE_RETRIES__MAX_ATTEMPTS", "")
    settings = load(file('[gateway]\nport = 9000\nhost = "h"\n'))
    assert (settings.gateway.port, settings.gateway.host, settings.timeouts.idle_s) == (9001, "h", 1.5)
    assert settings.retries.max_attempts == 3


def test_lists_come_from_the_environment_as_json(monkeypatch):
    """The whole list at once."""
    monkeypatch.setenv("WARMLANE_MODELS", '[{"name": "a", "aliases": ["b"]}]')
    assert load(None).models[0].aliases == ("b",)


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("WARMLANE_MODELS", '[{"name', "WARMLANE_MODELS must be JSON"),
        ("WARMLANE_GATEWAY", "secret-garbage", "WARMLANE_GATEWAY must be JSON"),
        ("WARMLANE_MODELS", '[{"name": "a b"}]', '[[models]] number 1: "name": use 1'),
        ("WARMLANE_GATEWAY__PROT", "1", '[gateway] unknown key "prot"; did you mean "port"?'),
        ("WARMLANE_GATEWAY__PORT", "http", '[gateway] "port" must be a whole number'),
        ("WARMLANE_TIMEOUTS__IDLE_S", "nan", '[timeouts] "idle_s" must be a finite number'),
        ("WARMLANE_TIMEOUTS__IDLE_S", "inf", '[timeouts] "idle_s" must be a finite number'),
    ],
)
def test_a_bad_variable_is_named(monkeypatch, name, value, key):
    """In one sentence, without a trace and without its value if it cannot be read at all."""
    monkeypatch.setenv(name, value)
    message = complaint(None)
    assert message.startswith("the environment: ")
    assert key in message
    assert "secret-garbage" not in message


def test_other_variables_of_ours_are_no_settings(monkeypatch):
    """`WARMLANE_HOME` and `WARMLANE_ADMIN_TOKEN` are read elsewhere."""
    monkeypatch.setenv("WARMLANE_HOME", "/x")
    monkeypatch.setenv("WARMLANE_ADMIN_TOKEN", "t")
    assert load(None) == Settings()


def test_settings_cannot_be_changed():
    """A running gateway's settings are a value."""
    with pytest.raises(ValueError, match="frozen"):
        load(None).gateway.port = 1


REDIS = "redis://127.0.0.1:6379/0"


def test_several_processes_need_a_store_that_they_share(file, monkeypatch):
    """P16: else each would count for itself; start-up refuses and says what to do."""
    four = file("[gateway]\nprocesses = 4\n")
    assert "set store.url to redis://host:port/db, or processes to 1" in complaint(four)
    assert "processes to 1" in complaint(file('[gateway]\nprocesses = 2\n[store]\nurl = "sqlite:///x.db"\n'))
    settings = load(file(f'[gateway]\nprocesses = 64\n[store]\nurl = "{REDIS}"\n'))
    assert (settings.gateway.processes, settings.store.is_shared) == (64, True)
    monkeypatch.setenv("WARMLANE_STORE__URL", "rediss://user:secret@redis.example:6380/1")
    assert load(four).store.is_shared


def test_one_process_may_have_any_store(file):
    """Gateways of other nodes may share the Redis; SQLite is for one alone."""
    assert load(file(f'[store]\nurl = "{REDIS}"\n')).store.is_shared
    assert not load(file("")).store.is_shared


@pytest.mark.parametrize(
    "section",
    [
        '[[workers]]\nmodel = "small-b"\n',
        '[[replicas]]\nname = "r1"\nmodel = "small-b"\nengine = "vllm"\nurl = "http://127.0.0.1:1"\n',
    ],
)
def test_an_alias_may_not_hide_a_model_that_is_served(file, section):
    """D14: requests for that model would go to another one."""
    assert "small-b" in complaint(file('[[models]]\nname = "small-a"\naliases = ["small-b"]\n' + section))
