# SPDX-License-Identifier: Apache-2.0
"""Three models that answer as one: an ensemble of Python functions and of Triton's python backend.

    tritonffi get-server --with-python-backend
    python examples/ensemble.py

A line of numbers goes in, a sentence comes out, and between the steps no data leaves the server::

    text -> parse (function) -> smooth (python backend) -> report (function) -> sentence

A function runs in this process. A model of the python backend runs in a process of its own, so it
may crash, hold its own interpreter lock, or bring an environment of its own. It lies in a model
repository, ``examples/models``; models of other backends are used in just the same way.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import tritonffi

if TYPE_CHECKING:
    import numpy.typing as npt

MODELS = Path(__file__).parent / "models"


def parse(line: npt.NDArray[np.object_]) -> npt.NDArray[np.float32]:
    """Turns text into numbers."""
    return np.array(line.item().split(), np.float32)


def report(values: npt.NDArray[np.float32]) -> list[bytes]:
    """Turns numbers into a sentence."""
    trend = "rising" if values[-1] > values[0] else "falling"
    return [f"{len(values)} values, {trend}, {values.max():.1f} at most".encode()]


def tensor(name: str, datatype: str, size: int) -> dict[str, object]:
    """Describes a tensor in a model configuration."""
    return {"name": name, "data_type": datatype, "dims": [size]}


def step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> dict[str, object]:
    """Describes a step of an ensemble: which of its tensors go to and come from a model's."""
    return {
        "model_name": model,
        "model_version": -1,
        "input_map": inputs,
        "output_map": outputs,
    }


def load_ensemble(server: tritonffi.Server) -> tritonffi.Model:
    """Loads the parts, and then what they make up."""
    text, numbers = ("BYTES", [1]), ("FP32", [-1])
    server.load_function("parse", parse, inputs={"line": text}, outputs={"numbers": numbers})
    server.load_function("report", report, inputs={"values": numbers}, outputs={"text": text})
    server.load("smooth")
    return server.load(
        "summary",
        {
            "platform": "ensemble",
            "input": [tensor("line", "TYPE_STRING", 1)],
            "output": [tensor("sentence", "TYPE_STRING", 1)],
            "ensemble_scheduling": {
                "step": [
                    step("parse", {"line": "line"}, {"numbers": "rough"}),
                    step("smooth", {"values": "rough"}, {"smoothed": "even"}),
                    step("report", {"values": "even"}, {"text": "sentence"}),
                ]
            },
        },
    )


def main() -> None:
    """Runs all of it."""
    with tritonffi.Server(MODELS, startup_models=[]) as server:
        model = load_ensemble(server)
        for line in ("1 5 3 7 5 9", "9 8 9 5 4 1"):
            print(f"{line}: {model.infer({'line': [line]})['sentence'].item().decode()}")

        # Where the time goes: one trace, with a child for each step.
        trace = tritonffi.Trace()
        model.infer({"line": ["1 2 3"]}, trace=trace)
        print("steps:", ", ".join(child.model_name for child in trace.children))

        # An error in a step is the answer of the whole.
        try:
            model.infer({"line": ["1 two 3"]})
        except tritonffi.TritonError as error:
            print(error)


if __name__ == "__main__":
    try:
        main()
    except tritonffi.InvalidArgumentError as error:
        sys.exit(str(error))  # which says what the python backend lacks here
