# SPDX-License-Identifier: Apache-2.0
"""
Ways to run the inferences of a load with tritonffi, each returning its round.

Every inference gets an array object of its own, as the work of a real program would; the memory
under them is that of as many arrays as are in flight, as in the C loop.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from time import perf_counter_ns
from typing import TYPE_CHECKING

from benchmarks._measure import summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from benchmarks._load import Load
    from benchmarks._measure import Round
    from tritonffi import Inference, Model, PreparedCall, Server

    Inputs = dict[str, NDArray[np.float32]]


def infer(server: Server, load: Load) -> Round:
    """One after the other, each awaited."""
    (model,) = _models(server, load)
    return _infer(model, load)


def prepared_infer(server: Server, load: Load) -> Round:
    """The same by a prepared call."""
    return _infer(_prepared(server, load), load)


def _infer(model: Model | PreparedCall, load: Load) -> Round:
    requests = make_inputs(load)
    times = []
    begin = perf_counter_ns()
    for inputs in requests:
        start = perf_counter_ns()
        model.infer(inputs)
        times.append((perf_counter_ns() - start) / 1e3)
    return summary((perf_counter_ns() - begin) / 1e3, times)


def submit(server: Server, load: Load) -> Round:
    """Several in flight, the oldest awaited first."""
    return _submit(_models(server, load), load)


def prepared_submit(server: Server, load: Load) -> Round:
    """The same by a prepared call."""
    return _submit([_prepared(server, load)], load)


def _submit(turns: Sequence[Model | PreparedCall], load: Load) -> Round:
    requests = make_inputs(load)
    models = itertools.cycle(turns)
    times = []
    pending: deque[tuple[int, Inference]] = deque()
    begin = perf_counter_ns()
    for model, inputs in zip(models, requests, strict=False):
        if len(pending) == load.in_flight:
            start, inference = pending.popleft()
            inference.result()
            times.append((perf_counter_ns() - start) / 1e3)
        pending.append((perf_counter_ns(), model.submit(inputs)))
    for start, inference in pending:
        inference.result()
        times.append((perf_counter_ns() - start) / 1e3)
    return summary((perf_counter_ns() - begin) / 1e3, times)


def mapped(server: Server, load: Load) -> Round:
    """The same by `Model.map`, which takes the next item when it is asked for the next response."""
    requests = make_inputs(load)
    (model,) = _models(server, load)
    starts: deque[int] = deque()

    def items() -> Iterator[Inputs]:
        for inputs in requests:
            starts.append(perf_counter_ns())
            yield inputs

    begin = perf_counter_ns()
    responses = model.map(items(), in_flight=load.in_flight)
    times = [(perf_counter_ns() - starts.popleft()) / 1e3 for _ in responses]
    return summary((perf_counter_ns() - begin) / 1e3, times)


def several(server: Server, load: Load) -> Round:
    """One after the other by `infer`, several by `map`, and how many requests a batch had."""
    (model,) = _models(server, load)
    before = model.statistics()
    figures = (infer if load.in_flight == 1 else mapped)(server, load)
    done = model.statistics() - before
    return {**figures, "requests a call": done.inference_count / done.execution_count}


def threads(server: Server, load: Load) -> Round:
    """Threads that each do one inference after the other."""
    (model,) = _models(server, load)
    each = max(1, load.count // load.threads)
    requests = [make_inputs(load, each) for _ in range(load.threads)]
    times: list[list[float]] = [[] for _ in requests]
    barrier = threading.Barrier(load.threads + 1)

    def work(mine: list[Inputs], into: list[float]) -> None:
        barrier.wait()
        for inputs in mine:
            start = perf_counter_ns()
            model.infer(inputs)
            into.append((perf_counter_ns() - start) / 1e3)

    workers = [
        threading.Thread(target=work, args=pair) for pair in zip(requests, times, strict=True)
    ]
    for worker in workers:
        worker.start()
    barrier.wait()
    begin = perf_counter_ns()
    for worker in workers:
        worker.join()
    total = (perf_counter_ns() - begin) / 1e3
    return summary(total, list(itertools.chain.from_iterable(times)))


def make_inputs(load: Load, count: int | None = None) -> list[Inputs]:
    """What the inferences of a round are given, made before its time begins."""
    names = [f"INPUT{number}" for number in range(load.inputs)]
    blocks = [[load.array() for _ in names] for _ in range(load.in_flight)]
    return [
        {name: block.view() for name, block in zip(names, blocks[i % load.in_flight], strict=True)}
        for i in range(count or load.count)
    ]


def _models(server: Server, load: Load) -> list[Model]:
    """Handles that have been used before: a first use reads what the model takes and gives."""
    names = [f"{load.model}{i}" for i in range(load.models)] or [load.model]
    models = [server.model(name) for name in names]
    (inputs,) = make_inputs(load, 1)
    for model in models:
        model.infer(inputs)
    return models


def _prepared(server: Server, load: Load) -> PreparedCall:
    (model,) = _models(server, load)
    (inputs,) = make_inputs(load, 1)
    return model.prepare(inputs)


def tasks(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Callable[[Server, Load], Round]:
    """As many tasks as are in flight, each awaiting one inference after the other, in that loop."""

    async def run_all(model: Model, load: Load) -> Round:
        requests = iter(make_inputs(load))
        times: list[float] = []

        async def work() -> None:
            for inputs in requests:
                start = perf_counter_ns()
                await model.async_infer(inputs)
                times.append((perf_counter_ns() - start) / 1e3)

        begin = perf_counter_ns()
        await asyncio.gather(*(work() for _ in range(load.in_flight)))
        return summary((perf_counter_ns() - begin) / 1e3, times)

    def run(server: Server, load: Load) -> Round:
        loop = new_loop()
        try:
            (model,) = _models(server, load)
            return loop.run_until_complete(run_all(model, load))
        finally:
            loop.close()

    return run
