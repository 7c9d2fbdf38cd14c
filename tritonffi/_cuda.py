# SPDX-License-Identifier: Apache-2.0
"""The two questions that arrays in GPU memory raise, asked of the CUDA driver at run time.

Triton reads the memory on streams of its own, so whatever still writes to it must be over before a
request is submitted: `synchronize`. And `__cuda_array_interface__` does not say which GPU the
memory belongs to: `device_of`. The driver is where GPU memory is; nothing of CUDA is needed to
build or import this package.
"""

from __future__ import annotations

import ctypes
from functools import cache

from tritonffi._errors import UnavailableError

#: The legacy default stream, in the driver's words and in those of DLPack and of
#: `__cuda_array_interface__`: streams of other libraries wait for it, and it for them.
LEGACY_STREAM = 1

_LIBRARY = "libcuda.so.1"
_DEVICE_ORDINAL = 9


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise UnavailableError(f"an array is in GPU memory, but {error}") from None


def _call(function: str, *arguments: object) -> None:
    code = int(getattr(_driver(), function)(*arguments))
    if code != 0:
        raise UnavailableError(f"CUDA: {function} failed with error {code}")


def device_of(address: int) -> int:
    """Return the number of the GPU that the memory at an address belongs to."""
    _call("cuInit", 0)
    device = ctypes.c_int()
    _call("cuPointerGetAttribute", ctypes.byref(device), _DEVICE_ORDINAL, ctypes.c_uint64(address))
    return device.value


def synchronize(device_id: int, stream: int) -> None:
    """Wait until a stream of a GPU has done all that was given to it so far.

    The stream is one of the device's primary context, which every library over the CUDA runtime
    uses. The calling thread's own context is as before when this returns.
    """
    _call("cuInit", 0)
    device = ctypes.c_int()
    context, previous = ctypes.c_void_p(), ctypes.c_void_p()
    _call("cuDeviceGet", ctypes.byref(device), device_id)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        _call("cuCtxPushCurrent_v2", context)
        try:
            _call("cuStreamSynchronize", ctypes.c_void_p(stream))
        finally:
            _call("cuCtxPopCurrent_v2", ctypes.byref(previous))
    finally:
        _call("cuDevicePrimaryCtxRelease_v2", device)
