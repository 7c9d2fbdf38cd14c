# SPDX-License-Identifier: Apache-2.0
"""Configs as somebody might write them: they load or are refused, and the server goes on.

They come over one another, so that most loads are reloads, and many of these fail.
"""

from __future__ import annotations

import time

import _backend
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tritonffi import Server, TritonError

EXAMPLES = 150
# What a close may take.
SOON_S = 3.0
# The models that configs are loaded as; those in ensembles may be these, or the one that is not.
NAMES = ["first", "second", "third"]


def mostly(usual, *odd):
    """One of the usual values most of the time."""
    return st.sampled_from([*usual * (1 + 6 * len(odd) // len(usual)), *odd])


def some(**fields):
    """A message with at most three of these fields: with more, hardly one would be right."""
    names = st.lists(st.sampled_from(sorted(fields)), max_size=3, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({n: fields[n] for n in chosen}))


TYPES = mostly(["TYPE_FP32", "TYPE_FP32", "TYPE_INT32", "TYPE_STRING"], "TYPE_INVALID", "x")
DIMS = mostly([[-1], [1], [-1, -1], [4]], [], [0], [-2], [2**31], [2**63 - 1, 2**63 - 1])
COUNTS = mostly([1, 2, 3], 0, -1)
SIZES = mostly([0, 1, 2, 8], -1, 2**31 - 1, 2**31, 2**63, "8", 1.5, None)
BOOLS = st.booleans()
MICROSECONDS = mostly([0, 1, 1000], -1, 2**64)
TENSORS = [f"INPUT{i}" for i in range(3)]


def tensors(names):
    """Declarations of inputs or outputs."""
    right = st.fixed_dictionaries(
        {"name": mostly(names, ""), "data_type": TYPES, "dims": DIMS},
    )
    odd = some(
        name=st.sampled_from(names),
        data_type=TYPES,
        dims=DIMS,
        reshape=some(shape=DIMS),
        optional=BOOLS,
        allow_ragged_batch=BOOLS,
        is_shape_tensor=BOOLS,
        label_filename=mostly(["labels.txt"], "../labels.txt", ""),
        format=mostly(["FORMAT_NONE"], "FORMAT_NHWC", "y"),
    )
    one = st.tuples(right, odd).map(lambda pair: pair[0] | pair[1])
    usual = st.lists(right, min_size=1, max_size=2, unique_by=lambda tensor: tensor["name"])
    return st.one_of(usual, usual, st.lists(one, max_size=2))


INSTANCE_GROUP = st.lists(
    some(
        count=COUNTS,
        kind=mostly(["KIND_CPU", "KIND_AUTO", "KIND_MODEL"], "KIND_GPU", "KIND_X"),
        gpus=st.lists(st.integers(-1, 1), max_size=2),
        name=st.sampled_from(["a", "b", ""]),
        passive=BOOLS,
        host_policy=st.sampled_from(["cpu", ""]),
    ),
    max_size=2,
)
QUEUE_POLICY = some(
    timeout_action=st.sampled_from(["REJECT", "DELAY", "z"]),
    default_timeout_microseconds=MICROSECONDS,
    allow_timeout_override=BOOLS,
    max_queue_size=SIZES,
)
DYNAMIC_BATCHING = some(
    preferred_batch_size=st.lists(SIZES, max_size=2),
    max_queue_delay_microseconds=MICROSECONDS,
    preserve_ordering=BOOLS,
    priority_levels=SIZES,
    default_priority_level=SIZES,
    default_queue_policy=QUEUE_POLICY,
    priority_queue_policy=st.dictionaries(
        st.sampled_from(["0", "1", "a"]), QUEUE_POLICY, max_size=1
    ),
)
CONTROL = some(
    name=st.sampled_from(["START", "END", "CORRID"]),
    control=st.lists(
        some(
            kind=st.sampled_from(
                ["CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_CORRID", "q"]
            ),
            fp32_false_true=st.lists(st.floats(0, 1), max_size=3),
            int32_false_true=st.lists(st.integers(0, 1), max_size=3),
            data_type=TYPES,
        ),
        max_size=2,
    ),
)
STATE = some(
    input_name=st.sampled_from(TENSORS),
    output_name=st.sampled_from(TENSORS),
    data_type=TYPES,
    dims=DIMS,
    initial_state=st.lists(some(data_type=TYPES, dims=DIMS, zero_data=BOOLS), max_size=1),
)
SEQUENCE_BATCHING = some(
    max_sequence_idle_microseconds=MICROSECONDS,
    control_input=st.lists(CONTROL, max_size=2),
    direct=some(
        max_queue_delay_microseconds=MICROSECONDS, minimum_slot_utilization=st.floats(0, 1)
    ),
    oldest=some(max_candidate_sequences=SIZES, preferred_batch_size=st.lists(SIZES, max_size=1)),
    state=st.lists(STATE, max_size=1),
)
STEP = st.fixed_dictionaries(
    {
        "model_name": mostly(["well", *NAMES], "missing", ""),
        "model_version": mostly([-1], 1, 2, 0, "x"),
        "input_map": mostly([{"INPUT0": "IN"}, {"INPUT0": "MID"}], {"IN": "IN"}, {"x": "OUT"}, {}),
        "output_map": mostly([{"OUTPUT0": "OUT"}, {"OUTPUT0": "MID"}], {"OUT": "OUT"}, {"y": "IN"}),
    }
)
KNOBS = st.dictionaries(
    st.sampled_from(["mode", "count", "error_at", "init_error", "thread", "other"]),
    some(string_value=st.sampled_from(["error", "no_output", "echo", "2", "true", ""])),
    max_size=2,
)
MORE = some(
    name=st.sampled_from([*NAMES, "", "a/b"]),
    platform=st.sampled_from(["ensemble", "tensorflow_graphdef", ""]),
    max_batch_size=SIZES,
    instance_group=INSTANCE_GROUP,
    dynamic_batching=DYNAMIC_BATCHING,
    sequence_batching=SEQUENCE_BATCHING,
    parameters=KNOBS,
    version_policy=st.one_of(
        some(latest=some(num_versions=SIZES)),
        some(all=st.just({})),
        some(specific=some(versions=st.lists(st.sampled_from([1, 2, 0, -1]), max_size=2))),
    ),
    model_transaction_policy=some(decoupled=BOOLS),
    response_cache=some(enable=BOOLS),
    optimization=some(
        eager_batching=BOOLS,
        priority=st.sampled_from(["PRIORITY_MAX", "PRIORITY_MIN", "w"]),
        input_pinned_memory=some(enable=BOOLS),
        gather_kernel_buffer_threshold=SIZES,
    ),
    default_model_filename=st.sampled_from(["model.bin", "../model.bin", ""]),
    metric_tags=st.dictionaries(st.sampled_from(["a", ""]), st.sampled_from(["b", ""])),
    model_operations=some(op_library_filename=st.lists(st.just("x.so"), max_size=1)),
    batch_input=st.lists(
        some(
            kind=st.sampled_from(["BATCH_ELEMENT_COUNT", "BATCH_ITEM_SHAPE", "v"]),
            target_name=st.lists(st.sampled_from(TENSORS), max_size=1),
            source_input=st.lists(st.sampled_from(TENSORS), max_size=1),
            data_type=TYPES,
        ),
        max_size=1,
    ),
    unknown=st.just(1),
)
PLAIN = st.tuples(
    st.fixed_dictionaries(
        {
            "backend": mostly(["tffitest"], "missing", "", "../tffitest", "python"),
            "input": tensors(TENSORS),
            "output": tensors(["OUTPUT0", "OUTPUT1"]),
        }
    ),
    MORE,
).map(lambda pair: pair[0] | pair[1])
ENSEMBLE = st.fixed_dictionaries(
    {
        "platform": st.just("ensemble"),
        "input": tensors(["IN"]),
        "output": tensors(["OUT"]),
        "ensemble_scheduling": st.fixed_dictionaries({"step": st.lists(STEP, max_size=3)}),
        "max_batch_size": mostly([0], 8),
    }
)


def attempt(call):
    """Call; what is refused is refused in words."""
    try:
        return call()
    except (TritonError, ValueError, TypeError, TimeoutError) as error:
        if not str(error):
            raise
        return None


@pytest.fixture(scope="module")
def server(backend_directory, tmp_path_factory):
    """A server of this file's own, in place of the common one; it closes soon in the end."""
    folder = tmp_path_factory.mktemp("models")
    _backend.write_model(folder, "well", {"INPUT0": ("FP32", [-1])})
    running = Server(folder, backend_directory=backend_directory, exit_timeout=30)
    yield running
    began = time.monotonic()
    running.close()
    assert time.monotonic() - began < SOON_S
    with Server(folder, backend_directory=backend_directory) as other:
        assert other.model("well").infer({"INPUT0": [1.0]})["OUTPUT0"].tolist() == [1.0]


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(name=st.sampled_from(NAMES), config=st.one_of(PLAIN, PLAIN, ENSEMBLE))
def test_any_likely_config_is_loaded_or_refused(server, name, config):
    """And a model that was loaded answers, or says why not."""
    model = attempt(lambda: server.load(name, config, timeout=30))
    if model is not None:
        shapes = attempt(model.metadata)["inputs"]
        inputs = {one["name"]: ones(one) for one in shapes}
        attempt(lambda: model.infer(inputs, timeout=10))
        attempt(lambda: list(model.stream(inputs, timeout=10)))
        attempt(model.statistics)
    assert server.model("well").infer({"INPUT0": [1.0]})["OUTPUT0"].tolist() == [1.0]


def ones(declared):
    """Return an array that may fit."""
    shape = [1 if int(dim) < 0 else min(int(dim), 16) for dim in declared["shape"]]
    if declared["datatype"] == "BYTES":
        return np.full(shape, b"1", object)
    return np.ones(shape, {"INT32": np.int32}.get(declared["datatype"], np.float32))


@pytest.mark.parametrize("again", [False, True])
def test_an_ensemble_of_itself_is_refused(server, again):
    """By itself, and in the place of a model that was loaded before."""
    tensor = {"data_type": "TYPE_FP32", "dims": [-1]}
    config = {
        "platform": "ensemble",
        "input": [{"name": "IN", **tensor}],
        "output": [{"name": "OUT", **tensor}],
        "ensemble_scheduling": {
            "step": [
                {
                    "model_name": "itself",
                    "model_version": -1,
                    "input_map": {"IN": "IN"},
                    "output_map": {"OUT": "OUT"},
                }
            ]
        },
    }
    if again:
        plain = {
            "backend": "tffitest",
            "input": [{"name": "IN", **tensor}],
            "output": [{"name": "OUT", **tensor}],
        }
        server.load("itself", plain)
    with pytest.raises(TritonError, match=r"(?i)circular|ensemble"):
        server.load("itself", config, timeout=30)
