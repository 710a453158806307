"""What follows from the options of an engine."""

from pathlib import Path

import pytest

from engines.core.eviction import EvictionPolicy
from engines.worker.engine_options import Speculation
from engines.worker.loaded import load_engine
from tests.engines.worker.scripted import fake_options


@pytest.mark.parametrize(
    ("engine", "speculation", "max_drafts", "number"),
    [
        ("gguf", None, None, 8),
        ("gguf", None, 3, 3),
        ("gguf", Speculation.OFF, 3, 0),
        ("gguf", Speculation.NGRAM, 0, 0),
        ("fake", None, None, 0),
        ("fake", None, 5, 5),
        ("fake", Speculation.NGRAM, None, 8),
    ],
)
def test_tokens_are_guessed_ahead_as_the_switch_says(engine, speculation, max_drafts, number):
    """Off is off; the fake engine guesses nothing unless it is told to."""
    options = fake_options(engine=engine, speculation=speculation, max_drafts=max_drafts)
    assert options.num_drafts == number
    assert (options.num_step_drafts > 0) is (number > 0)


def test_host_memory_is_taken_by_engines_that_gain_by_it_and_bounded():
    """None given: some of what is free for a real model, none for the fake one; what is given counts for both."""
    assert 0 <= fake_options(engine="gguf", path=Path("x")).host_kv_bytes <= 1 << 30
    assert fake_options().host_kv_bytes == 0
    assert fake_options(host_kv_mb=3).host_kv_bytes == 3 << 20


def test_host_memory_and_eviction_reach_the_scheduler():
    """In tokens, by what the runner says one takes."""
    loaded = load_engine(fake_options(host_kv_mb=2, eviction=EvictionPolicy.SLRU, checks_when_idle=True))
    try:
        assert loaded.settings.host.max_tokens == 2048
        assert loaded.settings.eviction is EvictionPolicy.SLRU
    finally:
        loaded.close()
