"""How many layers a GPU takes; the rule alone, no GPU was at hand."""

from types import SimpleNamespace

import cffi
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.gguf.gpu import GpuDevice, choose_gpu_layers, gpu_devices, gpu_layers
from engines.gguf.library import open_library

_GIB = 1 << 30


@pytest.mark.parametrize(
    ("layers", "weights", "kv", "free", "expected"),
    [
        (32, 4 * _GIB, _GIB, 24 * _GIB, 33),  # fits whole, output and all
        (32, 33 * _GIB, 32 * _GIB, 20 * _GIB, 9),  # 2 GiB a layer in 18 that may be used
        (80, 40 * _GIB, 0, 8 * _GIB, 14),
        (32, 4 * _GIB, 0, _GIB, 0),  # what is kept free is all there is
        (32, 4 * _GIB, 0, 0, 0),
        (1, 0, 0, 2 * _GIB, 2),
    ],
)  # fmt: skip
def test_as_many_layers_as_fit(layers, weights, kv, free, expected):
    """Evenly spread weights, KV beside its layer, a reserve of 1 GiB or a tenth."""
    assert gpu_layers(layers, weights, kv, free) == expected


@given(st.integers(1, 512), st.integers(0, 1 << 42), st.integers(0, 1 << 40), st.integers(0, 1 << 42))
def test_layers_stay_within_the_model_and_the_memory(layers, weights, kv, free):
    """More memory never takes fewer layers, and what is taken fits."""
    taken = gpu_layers(layers, weights, kv, free)
    assert 0 <= taken <= layers + 1
    assert gpu_layers(layers, weights, kv, free + _GIB) >= taken
    assert taken * (weights / (layers + 1) + kv / layers) <= free


def _library(devices, *, offloads=True):
    ffi = cffi.FFI()
    names = [ffi.new("char[]", name.encode()) for name, *_ in devices]

    def memory(index, free, total):
        free[0], total[0] = devices[index][2], 2 * devices[index][2]

    c = SimpleNamespace(
        llama_supports_gpu_offload=lambda: offloads,
        ggml_backend_dev_count=lambda: len(devices),
        ggml_backend_dev_get=lambda index: index,
        ggml_backend_dev_type=lambda index: devices[index][1],
        ggml_backend_dev_description=lambda index: names[index],
        ggml_backend_dev_memory=memory,
    )
    return SimpleNamespace(ffi=ffi, c=c)


def test_gpus_are_told_from_processors_and_accelerators():
    """A discrete and an integrated one count, the CPU and its matrix unit do not."""
    library = _library([("CPU", 0, 5), ("H200", 1, 7), ("Iris", 2, 3), ("AMX", 3, 9)])
    assert gpu_devices(library) == (GpuDevice("H200", 7, 14), GpuDevice("Iris", 3, 6))


def test_the_memory_of_all_gpus_counts():
    """llama.cpp spreads the layers by itself."""
    library = _library([("a", 1, 12 * _GIB), ("b", 1, 12 * _GIB)])
    assert choose_gpu_layers(library, 32, 16 * _GIB, 0) == 33
    assert choose_gpu_layers(library, None, 16 * _GIB, 0) > 33
    assert choose_gpu_layers(library, None, 32 * _GIB, 0) == 0


def test_a_library_without_a_gpu_back_end_computes_on_the_processor():
    """As the pinned wheel does here."""
    assert choose_gpu_layers(_library([("H200", 1, 100 * _GIB)], offloads=False), 32, _GIB, 0) == 0
    assert choose_gpu_layers(open_library("wheel"), 32, _GIB, 0) == 0
