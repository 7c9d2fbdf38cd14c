# SPDX-License-Identifier: Apache-2.0
"""Arrays as other libraries lend them, without those libraries, and without a GPU."""

from __future__ import annotations


class Lender:
    """An array that is offered over DLPack alone, perhaps under the name of another device."""

    def __init__(self, memory, *, device=None, versioned=True):
        """Lend `memory`."""
        self.memory = memory
        self.device = device
        self.versioned = versioned
        self.streams = []

    def __dlpack_device__(self):
        """Say where it is."""
        return self.device or (1, 0)

    def __dlpack__(self, stream=None, **keywords):
        """Lend it, and note for which stream."""
        if not self.versioned and keywords:
            raise TypeError("unexpected keyword max_version")
        self.streams.append(stream)
        return self.memory.__dlpack__(**keywords)


class CudaArray:
    """An array with `__cuda_array_interface__`, whose GPU is in truth the CPU."""

    def __init__(self, memory, **more):
        """Offer `memory`."""
        self.memory = memory
        self.__cuda_array_interface__ = {**memory.__array_interface__, "version": 3, **more}


class Driver:
    """Stands for libcuda: one GPU, number 5, whose streams are always done."""

    def __init__(self):
        """Note the calls."""
        self.calls = []

    def __getattr__(self, function):
        """Succeed, with the answers that are looked at."""

        def call(*arguments):
            self.calls.append((function, *(a for a in arguments if isinstance(a, int))))
            if function == "cuPointerGetAttribute":
                arguments[0]._obj.value = 5
            if function == "cuStreamSynchronize":
                self.calls[-1] += (arguments[0].value,)
            return 0

        return call
