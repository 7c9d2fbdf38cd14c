# SPDX-License-Identifier: Apache-2.0
"""
The clients of others, each in a process of its own: `python -m benchmarks._peer KIND ARGUMENT ...`.

    grpc, grpc_shm, http, http_shm    tritonclient: URL
    nvidia                            NVIDIA's in-process package: REPOSITORY BACKENDS

Reads the lines of `Load` and answers like c_loop.c. Says {"skip": why} when it cannot take part,
and with "ready" the versions that it runs on, where they are its own.
With "shm" inputs and outputs lie in system shared memory, and what a client does per inference is
to copy its array into the region and to look at the result there.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import queue
import sys
from collections import deque
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks._load import Load
from benchmarks._measure import summary
from benchmarks._versions import described

if TYPE_CHECKING:
    from benchmarks._measure import Round, Run


# These libraries have no types.
Library = Any


class Slot:
    """One inference of a network client: its array, and what says where its tensors are."""

    def __init__(self, library: Library, load: Load) -> None:
        """Inputs and outputs in the messages; `SharedSlot` has them elsewhere."""
        self.arrays = [load.array() for _ in range(load.inputs)]
        self.inputs = [
            library.InferInput(f"INPUT{i}", list(array.shape), "FP32")
            for i, array in enumerate(self.arrays)
        ]
        self.outputs = [
            library.InferRequestedOutput(f"OUTPUT{i}", **_binary(library))
            for i in range(load.inputs)
        ]
        self.start = 0

    def fill(self) -> None:
        """Puts the arrays into the request."""
        for tensor, array in zip(self.inputs, self.arrays, strict=True):
            tensor.set_data_from_numpy(array)

    def read(self, result: Library) -> None:
        """Takes the arrays out of the result."""
        for i, array in enumerate(self.arrays):
            assert result.as_numpy(f"OUTPUT{i}").nbytes == array.nbytes


class SharedSlot(Slot):
    """The same with the tensors in shared memory."""

    def __init__(
        self, library: Library, load: Load, region: Library, name: str, first: int
    ) -> None:
        """The tensors of the slot lie one after the other from `first` on, outputs last."""
        super().__init__(library, load)
        self._region = region
        self._offsets = [first + i * load.bytes for i in range(2 * load.inputs)]
        tensors = [*self.inputs, *self.outputs]
        for tensor, offset in zip(tensors, self._offsets, strict=True):
            tensor.set_shared_memory(name, load.bytes, offset)

    def fill(self) -> None:
        """Copies the arrays into the region."""
        from tritonclient.utils import shared_memory

        for array, offset in zip(self.arrays, self._offsets, strict=False):
            shared_memory.set_shared_memory_region(self._region, [array], offset)

    def read(self, result: Library) -> None:
        """Looks at the arrays in the region."""
        from tritonclient.utils import shared_memory

        del result
        for array, offset in zip(self.arrays, self._offsets[len(self.arrays) :], strict=True):
            seen = shared_memory.get_contents_as_numpy(
                self._region, array.dtype, list(array.shape), offset
            )
            assert seen.nbytes == array.nbytes


def _binary(library: Library) -> dict[str, bool]:
    return {"binary_data": True} if library.__name__.endswith("http") else {}


class Slots:
    """
    The slots for each kind of load, made once: regions stay registered.

    The server holds a region for some time after the last inference in it, and refuses to forget
    it meanwhile.
    """

    def __init__(self, library: Library, *, shared: bool) -> None:
        """Without any slot yet."""
        self._library = library
        self._shared = shared
        self._made: dict[tuple[int, ...], list[Slot]] = {}
        self._regions: list[Library] = []

    def get(self, client: Library, load: Load) -> list[Slot]:
        """As many slots as are in flight."""
        key = (load.inputs, load.bytes, load.batched, load.in_flight)
        if key not in self._made:
            make = self._make_shared if self._shared else self._make
            self._made[key] = make(client, load)
        return self._made[key]

    def close(self) -> None:
        """Gives the shared memory back; the server keeps its own hold on it."""
        if self._regions:
            from tritonclient.utils import shared_memory

            for region in self._regions:
                shared_memory.destroy_shared_memory_region(region)

    def _make(self, client: Library, load: Load) -> list[Slot]:
        del client
        return [Slot(self._library, load) for _ in range(load.in_flight)]

    def _make_shared(self, client: Library, load: Load) -> list[Slot]:
        from tritonclient.utils import shared_memory

        each = 2 * load.inputs * load.bytes
        name = f"tritonffi-benchmark-{os.getpid()}-{len(self._regions)}"
        region = shared_memory.create_shared_memory_region(name, f"/{name}", each * load.in_flight)
        self._regions.append(region)
        client.register_system_shared_memory(name, f"/{name}", each * load.in_flight)
        numbers = range(load.in_flight)
        return [SharedSlot(self._library, load, region, name, i * each) for i in numbers]


def one_by_one(client: Library, load: Load, slot: Slot) -> Round:
    """One after the other, each awaited."""
    times = []
    begin = perf_counter_ns()
    for _ in range(load.count):
        start = perf_counter_ns()
        slot.fill()
        slot.read(client.infer(load.model, slot.inputs, outputs=slot.outputs))
        times.append((perf_counter_ns() - start) / 1e3)
    return summary((perf_counter_ns() - begin) / 1e3, times)


def http(url: str, *, shared: bool) -> Run:
    """
    The HTTP client, and for several in flight its asyncio client, with a task for each.

    The plain client has an async_infer too, which sleeps for 10 ms in every call.
    """
    from tritonclient import http as library
    from tritonclient.http import aio

    client = library.InferenceServerClient(url)
    slots = Slots(library, shared=shared)
    loop = asyncio.new_event_loop()
    atexit.register(slots.close)

    async def several(load: Load, all_slots: list[Slot]) -> Round:
        times: list[float] = []
        numbers = iter(range(load.count))

        async def work(slot: Slot) -> None:
            for _ in numbers:
                start = perf_counter_ns()
                slot.fill()
                slot.read(await tasks_client.infer(load.model, slot.inputs, outputs=slot.outputs))
                times.append((perf_counter_ns() - start) / 1e3)

        async with aio.InferenceServerClient(url, conn_limit=load.in_flight) as tasks_client:
            await asyncio.gather(*(tasks_client.is_server_live() for _ in all_slots))  # connect
            begin = perf_counter_ns()
            await asyncio.gather(*map(work, all_slots))
            return summary((perf_counter_ns() - begin) / 1e3, times)

    def run(load: Load) -> Round:
        all_slots = slots.get(client, load)
        if load.in_flight == 1:
            return one_by_one(client, load, all_slots[0])
        return loop.run_until_complete(several(load, all_slots))

    return run


def grpc(url: str, *, shared: bool) -> Run:
    """The gRPC client: several in flight by its own async_infer, whichever is done first."""
    from tritonclient import grpc as library

    client = library.InferenceServerClient(url)
    slots = Slots(library, shared=shared)
    atexit.register(slots.close)

    def run(load: Load) -> Round:
        all_slots = slots.get(client, load)
        if load.in_flight == 1:
            return one_by_one(client, load, all_slots[0])
        times: list[float] = []
        done: queue.SimpleQueue[tuple[Slot, Library, Library]] = queue.SimpleQueue()
        idle = list(all_slots)
        begin = perf_counter_ns()
        for i in range(load.count + load.in_flight):
            if i >= load.in_flight:
                slot, result, error = done.get()
                if error is not None:
                    raise error
                slot.read(result)
                times.append((perf_counter_ns() - slot.start) / 1e3)
                idle.append(slot)
            if i < load.count:
                slot = idle.pop()
                slot.start = perf_counter_ns()
                slot.fill()
                client.async_infer(
                    load.model,
                    slot.inputs,
                    lambda result, error, slot=slot: done.put((slot, result, error)),
                    outputs=slot.outputs,
                )
        return summary((perf_counter_ns() - begin) / 1e3, times)

    return run


def nvidia(repository: str, backends: str) -> tuple[Run, str]:
    """NVIDIA's `tritonserver` package: `infer` at once, responses awaited; and its versions."""
    import tritonserver

    server = tritonserver.Server(
        model_repository=repository, backend_directory=backends, metrics=False, log_error=True
    )
    server.start(wait_until_ready=True)

    def run(load: Load) -> Round:
        model = server.model(load.model)
        blocks = [[load.array() for _ in range(load.inputs)] for _ in range(load.in_flight)]
        requests = [
            {f"INPUT{i}": array for i, array in enumerate(blocks[number % load.in_flight])}
            for number in range(load.count)
        ]
        times = []
        pending: deque[tuple[int, Library]] = deque()
        begin = perf_counter_ns()

        def finish() -> None:
            start, responses = pending.popleft()
            for response in responses:
                for i in range(load.inputs):
                    array = np.from_dlpack(response.outputs[f"OUTPUT{i}"])
                    assert array.nbytes == load.bytes
            times.append((perf_counter_ns() - start) / 1e3)

        for inputs in requests:
            if len(pending) == load.in_flight:
                finish()
            pending.append((perf_counter_ns(), model.infer(inputs=inputs)))
        while pending:
            finish()
        return summary((perf_counter_ns() - begin) / 1e3, times)

    triton = str(server.metadata()["version"])
    return run, described("tritonserver", "numpy", Triton=triton)


def main(kind: str, *arguments: str) -> None:
    """Does the rounds that stdin asks for."""
    ready: dict[str, object] = {"ready": 1}
    try:
        if kind == "nvidia":
            run, ready["versions"] = nvidia(*arguments)
        else:
            client = {"grpc": grpc, "http": http}[kind.removesuffix("_shm")]
            run = client(*arguments, shared=kind.endswith("_shm"))
    except ImportError as error:
        print(json.dumps({"skip": str(error)}), flush=True)
        return
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(Load.parse(line))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
