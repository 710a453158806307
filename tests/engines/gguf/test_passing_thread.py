"""Work in a thread that ends with it."""

import threading

import pytest

from engines.gguf.library import open_library
from engines.gguf.load import load
from engines.gguf.model import GgufModel
from engines.gguf.passing_thread import in_passing_thread
from engines.gguf.runner import GgufRunner
from engines.gguf.tiny_model import write_tiny_model


def test_the_result_comes_back_and_the_thread_is_gone():
    """As if it had been called."""
    threads = []
    assert in_passing_thread(lambda: threads.append(threading.current_thread()) or 7) == 7
    assert threads[0] is not threading.current_thread()
    assert not threads[0].is_alive()


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_an_error_is_raised_where_it_was_asked(error):
    """Whatever it is."""

    def fail():
        raise error

    with pytest.raises(type(error)):
        in_passing_thread(fail)


def test_loading_computes_on_no_thread_that_stays(tmp_path, monkeypatch):
    """Compute threads that the loading thread left behind would halve the speed of every step after it."""
    computed = set()
    decode = GgufRunner._decode

    def noted(self, step):
        computed.add(threading.current_thread())
        decode(self, step)

    monkeypatch.setattr(GgufRunner, "_decode", noted)
    write_tiny_model(tmp_path / "m.gguf")
    sizes = {"num_slots": 2, "kv_tokens": 256, "max_step_tokens": 8, "threads": 2, "home": tmp_path}
    load(tmp_path / "m.gguf", **sizes).runner.close()
    assert computed
    assert not any(thread.is_alive() for thread in computed)
    assert GgufModel(tmp_path / "m.gguf", open_library()).vocab_size == 259
