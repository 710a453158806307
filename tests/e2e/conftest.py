"""Whole systems of real processes, each quiescent when its test is done with it."""

import contextlib
from pathlib import Path

import pytest

from engines.launch.demo_model import DEMO_MODEL_NAME, ensure_demo_model
from tests.models import models_folder
from tests.warmlane_process import commands, until


def assert_quiescent(system):
    """Everything that was held is given back, within the time an abort takes to be noticed."""
    in_flight = {}

    def is_quiescent():
        in_flight.update(system.admin("/statistics")["in_flight"])
        return not any(in_flight.values())

    until(is_quiescent, lambda: in_flight)


@contextlib.contextmanager
def _up(home: Path, config: str, *words: str):
    with commands(home) as start:
        system = start("up", *words, config=config)
        system.until_ready()
        yield system
        assert_quiescent(system)
        assert system.end() == 0, system.stderr


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """`warmlane up` with the demo model: two real workers."""
    home = tmp_path_factory.mktemp("demo") / "home"
    models = home / "models"
    models.mkdir(parents=True)
    for file in ensure_demo_model(models_folder()).parent.glob(f"{DEMO_MODEL_NAME}*"):
        (models / file.name).symlink_to(file)
    with _up(home, "") as system:
        yield system


@pytest.fixture(scope="module")
def fakes(tmp_path_factory):
    """`warmlane up` with two fake workers that take about 5 ms a token."""
    config = """
    [[workers]]
    model = "fake-model"
    engine = "fake"
    count = 2
    max_seqs = 8
    """
    with _up(tmp_path_factory.mktemp("fakes") / "home", config) as system:
        yield system
