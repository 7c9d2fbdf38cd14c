# SPDX-License-Identifier: Apache-2.0
"""Ensembles for tests: a chain of models that echo."""

from __future__ import annotations


def ensemble(server, name, steps, datatype="FP32", max_batch_size=8):
    """Load an ensemble from X to Y whose steps are echo models of INPUT0, one after the other."""
    names = ["X", *(f"between{i}" for i in range(1, len(steps))), "Y"]
    return server.load(
        name,
        {
            "platform": "ensemble",
            "max_batch_size": max_batch_size,
            "input": [{"name": "X", "data_type": f"TYPE_{datatype}", "dims": [-1]}],
            "output": [{"name": "Y", "data_type": f"TYPE_{datatype}", "dims": [-1]}],
            "ensemble_scheduling": {
                "step": [
                    {
                        "model_name": model,
                        "model_version": -1,
                        "input_map": {"INPUT0": names[i]},
                        "output_map": {"OUTPUT0": names[i + 1]},
                    }
                    for i, model in enumerate(steps)
                ]
            },
        },
    )
