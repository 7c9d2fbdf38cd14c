# SPDX-License-Identifier: Apache-2.0
"""What the tests of function models share."""

from __future__ import annotations

import threading

import numpy as np

FP32 = ("FP32", [-1])
BYTES = ("BYTES", [-1])
BATCHED = {"max_batch_size": 64, "config": {"dynamic_batching": {}}}
NAME = "function"


def batching(rows):
    """Dynamic batching that waits for so many rows, but not for long.

    Without the wait Triton may take the first of several requests to itself.
    """
    return {"preferred_batch_size": [rows], "max_queue_delay_microseconds": 500_000}


class Loader:
    """Loads callables of `x` that return `y` into a server, and unloads them in the end."""

    def __init__(self, server):
        self.server = server
        self.names = set()

    def __call__(self, function, *, name=NAME, x=FP32, y=FP32, **options):
        arguments = {"inputs": {"x": x}, "outputs": {"y": y}, **options}
        self.names.add(name)
        return self.server.load_function(name, function, **arguments)

    def unload(self):
        """Unload them all."""
        while self.names:
            self.server.unload(self.names.pop())


class Held:
    """A callable that waits until it may go on, and remembers what it was called with."""

    def __init__(self):
        self.entered = threading.Semaphore(0)
        self.may_go = threading.Event()
        self.calls = []

    def __call__(self, x):
        self.calls.append(x)
        self.entered.release()
        assert self.may_go.wait(30)
        return {"y": x}

    def wait(self):
        """Wait for a call."""
        assert self.entered.acquire(timeout=30)


def row(*values):
    """One row of FP32."""
    return np.array([values], np.float32)


def identity(x):
    """Return what comes in."""
    return {"y": x}


def statistics(model):
    """Triton's counts: inferences, executions, successes, failures, and executions by rows."""
    stats = model.statistics()
    return {
        "inferences": stats.inference_count,
        "executions": stats.execution_count,
        "success": stats.success.count,
        "fail": stats.fail.count,
        "sizes": {size: batch.executions for size, batch in stats.batches.items()},
    }


def workers(name=NAME):
    """The worker threads of a function that run."""
    return [t for t in threading.enumerate() if t.name.startswith(f"tritonffi: {name} #")]
