# SPDX-License-Identifier: Apache-2.0
"""
pytriton serving the function of functions.py: `python -m benchmarks._pytriton MAX_BATCH`.

Runs in an environment of its own and talks like `_peer`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import sysconfig
from typing import Any

import numpy as np

from benchmarks._load import Load
from benchmarks._peer import grpc
from benchmarks._versions import described


def main(max_batch: str) -> None:
    """Starts the server and does the rounds that stdin asks for."""
    try:
        from pytriton.decorators import batch
        from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
        from pytriton.triton import Triton, TritonConfig
    except ImportError as error:
        print(json.dumps({"skip": str(error)}), flush=True)
        return

    def double(**inputs: Any) -> Any:  # noqa: ANN401 - it has no types
        return {"OUTPUT0": inputs["INPUT0"] * 2}

    # Its stub shall run on this very Python, not on another of the version that the loader finds.
    folders = [sysconfig.get_config_var("LIBDIR"), os.environ.get("LD_LIBRARY_PATH")]
    os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
    ports = [_free_port() for _ in range(3)]
    config = TritonConfig(
        http_port=ports[0], grpc_port=ports[1], metrics_port=ports[2], log_verbose=0
    )
    # What the server prints must not come between our lines.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with Triton(config=config) as triton:
        triton.bind(
            model_name="quick",
            infer_func=batch(double),
            inputs=[Tensor(name="INPUT0", dtype=np.float32, shape=(-1,))],
            outputs=[Tensor(name="OUTPUT0", dtype=np.float32, shape=(-1,))],
            config=ModelConfig(max_batch_size=int(max_batch), batcher=DynamicBatcher()),
        )
        triton.run()
        run = grpc(f"127.0.0.1:{ports[1]}", shared=False)
        versions = described("nvidia-pytriton", "tritonclient", "numpy")
        print(json.dumps({"ready": 1, "versions": versions}), flush=True, file=answers)
        for line in sys.stdin:
            print(json.dumps(run(Load.parse(line))), flush=True, file=answers)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


if __name__ == "__main__":
    main(*sys.argv[1:])
