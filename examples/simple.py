# SPDX-License-Identifier: Apache-2.0
"""One server, one model, and one request used several times: what ``simple_capi.py`` does, shorter.

The library is found and its version checked when the server starts; options have defaults that suit
a server inside a process; the output memory, the waiting and the end of it all are taken care of.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

import tritonffi

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    Array = npt.NDArray[np.int32]


def add_and_subtract(INPUT0: Array, INPUT1: Array) -> dict[str, Array]:  # noqa: N803
    """Is the model."""
    return {"OUTPUT0": INPUT0 + INPUT1, "OUTPUT1": INPUT0 - INPUT1}


def compare(title: str, outputs: Mapping[str, Array], a: Array, b: Array) -> None:
    """Prints the outputs, and fails where one is not what the model should make of `a` and `b`."""
    print(f"{title}:")
    expected = {"OUTPUT0": a + b, "OUTPUT1": a - b}
    for name, array in outputs.items():
        print(f"  {name} = {array.tolist()}")
        np.testing.assert_array_equal(array, expected[name])


def main() -> None:
    """Runs all of it."""
    options = tritonffi.ServerOptions(server_id="simple", metrics=False)
    with tritonffi.Server(options=options) as server:
        print(f"The server is live: {server.is_live()}, ready: {server.is_ready()}")

        tensor = ("INT32", [4])
        model = server.load_function(
            "simple",
            add_and_subtract,
            inputs={"INPUT0": tensor, "INPUT1": tensor},
            outputs={"OUTPUT0": tensor, "OUTPUT1": tensor},
            max_batch_size=4,
        )
        print(f"The model is ready: {model.is_ready()}")
        metadata = model.metadata()
        for about in metadata["inputs"] + metadata["outputs"]:
            print(f"  {about['name']} {about['datatype']} {about['shape']}")

        # The short way: arrays in, arrays out.
        count = np.arange(4, dtype=np.int32)[None]
        ones = np.ones_like(count)
        compare("First", model.infer({"INPUT0": count, "INPUT1": ones}), count, ones)

        # A request as an object says more, and may be used again: it reads the arrays anew.
        request = tritonffi.Request(
            {"INPUT0": count, "INPUT1": ones}, request_id="my request", timeout=5
        )
        count[0, 0] = 27
        response = model.infer(request)
        compare(f"Response to {response.request_id!r}", response, count, ones)

        # Like it, but for what is given.
        other = replace(request, inputs={"INPUT0": ones, "INPUT1": count}, outputs=["OUTPUT1"])
        compare("Other inputs, one output", model.infer(other), ones, count)

        # Many at a time: submit now, ask for the results later.
        batches = [np.concatenate([count] * rows) for rows in (1, 2, 3)]
        pending = [model.submit({"INPUT0": batch, "INPUT1": batch}) for batch in batches]
        for batch, inference in zip(batches, pending, strict=True):
            compare(f"A batch of {len(batch)}", inference.result(), batch, batch)


if __name__ == "__main__":
    main()
