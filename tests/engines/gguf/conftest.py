"""The demo model for tests that are marked `model`."""

import os
from pathlib import Path

import pytest

from engines.gguf.library import open_library
from engines.gguf.model import GgufModel
from engines.gguf.runner import GgufRunner, RunnerSettings
from engines.launch.demo_model import ensure_demo_model

_REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model's file, fetched once into `WARMLANE_TEST_MODELS` or the repository's own models folder."""
    return ensure_demo_model(Path(os.environ.get("WARMLANE_TEST_MODELS", _REPOSITORY / ".warmlane" / "models")))


@pytest.fixture(scope="session")
def model(demo_model: Path) -> GgufModel:
    """The demo model, loaded once; nothing about it changes."""
    return GgufModel(demo_model, open_library())


@pytest.fixture
def runner(model: GgufModel):
    """A fresh runner of 8 slots and 2,048 KV tokens."""
    runner = GgufRunner(
        model, RunnerSettings(num_slots=8, kv_tokens=2048, max_step_tokens=256, threads=1, threads_batch=1)
    )
    yield runner
    runner.close()
