"""How many of a model's layers a GPU takes, where the loaded library has a GPU back end.

NOTE: never run on a GPU: the pinned wheels for Linux and Windows compute on the processor, and no machine with a GPU
back end has been at hand. The rule is tested, the library's answers are not.
"""

from dataclasses import dataclass

from engines.gguf.library import Library

_GPU_TYPES = frozenset({1, 2})  # ggml_backend_dev_type: of its own memory, and one that shares the host's
# Kept free: buffers of a step, and what the desktop and the driver take meanwhile. Chosen; llama.cpp's own fitting
# leaves 1 GiB.
_RESERVE_BYTES = 1 << 30
_RESERVE_SHARE = 0.1
_EVERY_LAYER = 1 << 10  # more than any model has


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU as the library sees it. Sizes in bytes."""

    name: str
    free_bytes: int
    total_bytes: int


def gpu_devices(library: Library) -> tuple[GpuDevice, ...]:
    """The GPUs that the library can compute on; none for a library without a GPU back end."""
    c, ffi = library.c, library.ffi
    if not c.llama_supports_gpu_offload():
        return ()
    found = []
    for index in range(c.ggml_backend_dev_count()):
        device = c.ggml_backend_dev_get(index)
        if c.ggml_backend_dev_type(device) in _GPU_TYPES:
            sizes = ffi.new("size_t[2]")
            c.ggml_backend_dev_memory(device, sizes, sizes + 1)
            name = bytes(ffi.string(c.ggml_backend_dev_description(device))).decode(errors="replace")
            found.append(GpuDevice(name, int(sizes[0]), int(sizes[1])))
    return tuple(found)


def gpu_layers(num_layers: int, weight_bytes: int, kv_bytes: int, free_bytes: int) -> int:
    """Layers to put on GPUs with `free_bytes` together: 0 to `num_layers` + 1, the output counting as one.

    Weights are taken to be spread evenly, and a layer's KV lies where the layer is. A model that fits goes whole.
    """
    usable = _usable(free_bytes)
    if num_layers < 1 or usable <= 0:
        return 0
    layer_bytes = weight_bytes / (num_layers + 1) + kv_bytes / num_layers
    return max(0, min(num_layers + 1, int(usable / max(layer_bytes, 1))))


def choose_gpu_layers(library: Library, num_layers: int | None, weight_bytes: int, kv_bytes: int) -> int:
    """`gpu_layers` for the GPUs that are there now; 0 without one. A model of unknown depth goes whole or not."""
    devices = gpu_devices(library)
    if not devices:
        return 0
    free = sum(device.free_bytes for device in devices)
    if num_layers:
        return gpu_layers(num_layers, weight_bytes, kv_bytes, free)
    return _EVERY_LAYER if weight_bytes < _usable(free) else 0


def _usable(free_bytes: int) -> int:
    return free_bytes - max(_RESERVE_BYTES, int(free_bytes * _RESERVE_SHARE))
