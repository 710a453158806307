"""Configuration files for tests, in an environment that sets nothing."""

import os

import pytest

from gateway.settings import ConfigError, load

REPLICA = '[[replicas]]\nname = "r1"\nmodel = "m"\nengine = "vllm"\nurl = "{url}"\n'


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    """Only what a test sets is set."""
    for name in [name for name in os.environ if name.upper().startswith("WARMLANE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path):
    """Writes a configuration and gives its path."""

    def write(text):
        path = tmp_path / "warmlane.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def complaint(path):
    """What is wrong with the configuration."""
    with pytest.raises(ConfigError) as caught:
        load(path)
    return str(caught.value)
