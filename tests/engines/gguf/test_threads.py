"""Threads for each kind of step: measured shortly, remembered, and never a reason not to start."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.gguf.load import load
from engines.gguf.threads import CACHE_NAME, ThreadCache, Threads, cache_path, candidates, fastest, is_busy, measure
from engines.gguf.tiny_model import write_tiny_model


class _Machine:
    """A machine whose steps take what `seconds(threads)` says; its clock moves by that."""

    def __init__(self, seconds) -> None:
        self.now, self.tried, self._seconds = 0.0, [], seconds

    def step(self, threads):
        self.tried.append(threads)
        self.now += self._seconds(threads)

    def fastest(self, most):
        return fastest(most, self.step, lambda: self.now)


@given(st.integers(1, 512))
def test_candidates_grow_and_include_one_and_all(most):
    """On any machine few numbers are tried."""
    tried = candidates(most)
    assert (tried[0], tried[-1]) == (1, most)
    assert list(tried) == sorted(set(tried))
    assert len(tried) <= 13


def test_work_that_scales_takes_all_cores():
    """Prompts on a machine of many cores."""
    assert _Machine(lambda threads: 0.1 / threads).fastest(16) == 16


def test_work_bound_by_memory_takes_few():
    """Beyond what the memory feeds, more threads are left to others."""
    assert _Machine(lambda threads: 0.1 / min(threads, 4)).fastest(64) == 4


def test_hyper_threads_that_hurt_are_not_taken():
    """Half of what the system calls cores is best."""
    assert _Machine(lambda threads: 0.1 / threads if threads <= 8 else 0.05).fastest(16) == 8


def test_two_cores_of_which_one_is_taken_by_others():
    """A second thread that only waits is not used."""
    assert _Machine(lambda threads: 0.1).fastest(2) == 1


def test_a_slow_model_is_measured_for_a_bounded_time():
    """A step of seconds is tried with few numbers, and the start goes on."""
    machine = _Machine(lambda threads: 1.5 / threads)
    assert machine.fastest(64) >= 1
    assert machine.now < 6


def test_one_core_measures_nothing():
    """There is nothing to choose."""
    never = _Machine(lambda threads: 1 / 0)
    assert measure(1, never.step, never.step) == Threads(1, 1, "one core")


def test_each_phase_has_its_own_number():
    """One token is bound by memory, prompts by cores."""
    found = measure(2, lambda threads: None, lambda threads: None)
    assert found.origin == "measured"
    assert {found.single, found.batch} <= {1, 2}


def test_what_is_remembered_is_not_measured_again(tmp_path):
    """For the same key, and only while so many threads may be used."""
    cache = ThreadCache(tmp_path / "deep" / CACHE_NAME)
    assert cache.recall("a", 8) is None
    cache.remember("a", Threads(3, 6, "measured"))
    assert cache.recall("a", 8) == Threads(3, 6, "remembered")
    assert cache.recall("a", 4) is None
    assert cache.recall("b", 8) is None
    assert [path.name for path in (tmp_path / "deep").iterdir()] == [CACHE_NAME]


def test_the_memory_is_bounded(tmp_path):
    """A folder that lives for years holds the last 64."""
    cache = ThreadCache(tmp_path / CACHE_NAME)
    for number in range(70):
        cache.remember(f"key {number}", Threads(1, 2, "measured"))
    assert len(json.loads((tmp_path / CACHE_NAME).read_text())) == 64
    assert cache.recall("key 5", 2) is None
    assert cache.recall("key 69", 2) == Threads(1, 2, "remembered")


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"a": 3}', '{"a": [0, 1]}', '{"a": ["x", "y"]}', '{"a": [1]}'])
def test_a_damaged_memory_is_forgotten(tmp_path, content):
    """It is measured again, and written anew."""
    path = tmp_path / CACHE_NAME
    path.write_text(content)
    assert ThreadCache(path).recall("a", 8) is None
    ThreadCache(path).remember("a", Threads(1, 1, "measured"))
    assert ThreadCache(path).recall("a", 8) == Threads(1, 1, "remembered")


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path):
    """Measured numbers serve this start."""
    (tmp_path / "file").write_text("")
    ThreadCache(tmp_path / "file" / CACHE_NAME).remember("a", Threads(1, 1, "measured"))


def test_the_place_is_the_home_folder(tmp_path):
    """As everything that Warmlane keeps."""
    assert cache_path({"WARMLANE_HOME": str(tmp_path)}) == tmp_path / CACHE_NAME
    assert cache_path({}).parent.name == ".warmlane"


def test_a_busy_machine_is_not_measured_and_nothing_is_remembered(tmp_path, monkeypatch):
    """A number taken while others compute would be kept for good; all threads are the safe choice."""
    assert not is_busy(0.9, 2)
    assert is_busy(1.1, 2)
    monkeypatch.setattr("engines.gguf.load.load_now", lambda: 1e9)
    write_tiny_model(tmp_path / "m.gguf")
    sizes = {"num_slots": 2, "kv_tokens": 256, "max_step_tokens": 8, "threads": 2, "home": tmp_path}
    loaded = load(tmp_path / "m.gguf", **sizes)
    loaded.runner.close()
    assert (loaded.threads.single, loaded.threads.batch) == (2, 2)
    assert "busy" in loaded.threads.origin
    assert not (tmp_path / CACHE_NAME).exists()


def test_a_load_measures_once_and_then_remembers(tmp_path, monkeypatch):
    """The second start of a worker does not wait for it, and another file is another model."""
    monkeypatch.setattr("engines.gguf.load.load_now", lambda: 0.0)
    sizes = {"num_slots": 2, "kv_tokens": 256, "max_step_tokens": 8, "threads": 2, "home": tmp_path}
    path = tmp_path / "m.gguf"
    write_tiny_model(path)
    origins = []
    for _ in range(2):
        loaded = load(path, **sizes)
        c, context = loaded.runner.library.c, loaded.runner._context
        used = (c.llama_n_threads(context), c.llama_n_threads_batch(context))
        assert used == (loaded.threads.single, loaded.threads.batch)
        assert repr(loaded.runner).startswith("<GgufRunner open, 0 of 2 slots")
        loaded.runner.close()
        origins.append(loaded.threads.origin)
    assert origins == ["measured", "remembered"]
    given = load(path, **sizes, threads_batch=1)
    given.runner.close()
    assert (given.threads.single, given.threads.batch, given.threads.origin) == (2, 1, "given")


def test_what_is_no_file_is_not_waited_for(tmp_path):
    """To open a pipe would wait for somebody to write into it, for ever."""
    path = tmp_path / CACHE_NAME
    os.mkfifo(path)
    assert ThreadCache(path).recall("a", 8) is None
    ThreadCache(path).remember("a", Threads(1, 1, "measured"))
    assert ThreadCache(path).recall("a", 8) == Threads(1, 1, "remembered")


def test_what_cannot_be_kept_leaves_nothing(tmp_path):
    """A folder in its place, or a full disk: else each start would leave a file."""
    (tmp_path / CACHE_NAME).mkdir()
    ThreadCache(tmp_path / CACHE_NAME).remember("a", Threads(1, 1, "measured"))
    assert [path.name for path in tmp_path.iterdir()] == [CACHE_NAME]
