# SPDX-License-Identifier: Apache-2.0
"""
Triton's python backend serving the function of functions.py.

    python -m benchmarks._python_backend MAX_BATCH

In a process of its own, for where it is loaded tritonffi makes a new request for each inference:
what is measured beside it would be slower. Talks like `_peer`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import tritonffi
from benchmarks import _drive
from benchmarks._load import Load

# The loop over requests is how Triton's documentation has it.
MODEL_PY = """
import triton_python_backend_utils as utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            output = utils.Tensor("OUTPUT0", array * 2)
            responses.append(utils.InferenceResponse([output]))
        return responses
"""
CONFIG = """
name: "quick"
backend: "python"
max_batch_size: {}
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [-1] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }}
dynamic_batching {{}}
instance_group [{{ kind: KIND_CPU count: 1 }}]
"""


def main(max_batch: str) -> None:
    """Starts the server and does the rounds that stdin asks for."""
    with tempfile.TemporaryDirectory(prefix="tritonffi-benchmark-") as folder:
        model = Path(folder) / "quick"
        (model / "1").mkdir(parents=True)
        (model / "1/model.py").write_text(MODEL_PY, encoding="utf-8")
        (model / "config.pbtxt").write_text(CONFIG.format(max_batch), encoding="utf-8")
        try:
            server = tritonffi.Server(folder, metrics=False)
        except tritonffi.TritonError as error:
            # Whole, for what to do about it is said last; in one line, for a list.
            print(json.dumps({"skip": " ".join(str(error).split())}), flush=True)
            return
        with server:
            print(json.dumps({"ready": 1}), flush=True)
            for line in sys.stdin:
                figures = _drive.several(server, Load.parse(line))
                print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
