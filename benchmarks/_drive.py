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
    starts: list[int] = []
    ends: list[int] = []
    for inputs in requests:
        starts.append(perf_counter_ns())
        model.infer(inputs)
        ends.append(perf_counter_ns())
    return _summary(starts, ends)


def _summary(starts: Sequence[int], ends: Sequence[int]) -> Round:
    """A round from the times of its inferences in ns, which are taken apart when it is over."""
    times = [(end - start) / 1e3 for start, end in zip(starts, ends, strict=True)]
    return summary((ends[-1] - starts[0]) / 1e3, times)


def submit(server: Server, load: Load) -> Round:
    """Several in flight, the oldest awaited first."""
    return _submit(_models(server, load), load)


def prepared_submit(server: Server, load: Load) -> Round:
    """The same by a prepared call."""
    return _submit([_prepared(server, load)], load)


def _submit(turns: Sequence[Model | PreparedCall], load: Load) -> Round:
    requests = make_inputs(load)
    submits = itertools.cycle([model.submit for model in turns])
    pending: deque[Inference] = deque()
    starts: list[int] = []
    ends: list[int] = []
    for submit, inputs in zip(submits, requests, strict=False):
        if len(pending) == load.in_flight:
            pending.popleft().result()
            ends.append(perf_counter_ns())
        starts.append(perf_counter_ns())
        pending.append(submit(inputs))
    for inference in pending:
        inference.result()
        ends.append(perf_counter_ns())
    return _summary(starts, ends)


def mapped(server: Server, load: Load) -> Round:
    """The same by `Model.map`, which takes the next item when it is asked for the next response."""
    requests = make_inputs(load)
    (model,) = _models(server, load)
    starts: list[int] = []

    def items() -> Iterator[Inputs]:
        for inputs in requests:
            starts.append(perf_counter_ns())
            yield inputs

    ends = [perf_counter_ns() for _ in model.map(items(), in_flight=load.in_flight)]
    return _summary(starts, ends)


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

    def work(mine: Iterator[Inputs], into: list[float]) -> None:
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


def make_inputs(load: Load, count: int | None = None) -> Iterator[Inputs]:
    """What the inferences of a round are given, each made when it is asked for."""
    names = [f"INPUT{number}" for number in range(load.inputs)]
    blocks = [[load.array() for _ in names] for _ in range(load.in_flight)]
    turns = itertools.islice(itertools.cycle(blocks), count or load.count)
    if load.inputs == 1:
        (name,) = names
        return ({name: block[:]} for (block,) in turns)
    return ({name: block[:] for name, block in zip(names, of, strict=True)} for of in turns)


def _models(server: Server, load: Load) -> list[Model]:
    """Handles that have been used before: a first use reads what the model takes and gives."""
    names = [f"{load.model}{i}" for i in range(load.models)] or [load.model]
    models = [server.model(name) for name in names]
    inputs = next(make_inputs(load))
    for model in models:
        model.infer(inputs)
    return models


def _prepared(server: Server, load: Load) -> PreparedCall:
    (model,) = _models(server, load)
    inputs = next(make_inputs(load))
    return model.prepare(inputs)


def tasks(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Callable[[Server, Load], Round]:
    """As many tasks as are in flight, each awaiting one inference after the other, in that loop."""

    async def run_all(model: Model, load: Load) -> Round:
        requests = make_inputs(load)
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
