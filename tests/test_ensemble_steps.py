# SPDX-License-Identifier: Apache-2.0
"""Steps of ensembles whose queue may be full while others run: Triton never answers, or crashes."""

from __future__ import annotations

import pytest
from _functions import Held, identity, row

from tritonffi import InvalidArgumentError, QueueFullError, Server, UnsupportedError
from tritonffi._config_text import message_of, read_text
from tritonffi._steps import flow_of, sequenced_in, stuck_in

TENSOR = {"data_type": "TYPE_FP32", "dims": [-1]}
BOUNDED = {"dynamic_batching": {"default_queue_policy": {"max_queue_size": 1}}}
PRIORITY = {
    "dynamic_batching": {
        "priority_levels": 2,
        "default_priority_level": 2,
        "priority_queue_policy": {"1": {"max_queue_size": 1}},
    }
}
UNBOUNDED = {
    "dynamic_batching": {
        "default_queue_policy": {"max_queue_size": 0, "default_timeout_microseconds": 1000}
    }
}
WORDS = (
    "ensemble '{}': config: 'ensemble_scheduling': the step of model '{}' {}, and its queue may be "
    "full ('max_queue_size'): Triton would never answer the request then, or end the process "
    "(triton-inference-server/core#466); leave 'max_queue_size' of '{}' out, or have one step run "
    "at a time"
)
BESIDE = WORDS.format("whole", "full", "may run beside 'free'", "full")
BEHIND = WORDS.format(
    "whole", "full", "comes after 'many', which is decoupled and may go on", "full"
)


def whole(*steps, outputs=("OUT",), **more):
    """A config of steps: each a model, the tensors that it reads, and the one that it writes."""
    return {
        "platform": "ensemble",
        "max_batch_size": 1,
        "input": [{"name": "IN", **TENSOR}],
        "output": [{"name": name, **TENSOR} for name in outputs],
        "ensemble_scheduling": {
            "step": [
                {
                    "model_name": model,
                    "model_version": -1,
                    "input_map": dict(zip("xz", reads, strict=False)),
                    "output_map": {"y": writes},
                }
                for model, reads, writes in steps
            ]
        },
        **more,
    }


CHAIN = (("free", ["IN"], "m"), ("full", ["m"], "OUT"))
BRANCHES = (("free", ["IN"], "OUT"), ("full", ["IN"], "OTHER"))
PARTS = {"free": {}, "full": BOUNDED, "many": {"model_transaction_policy": {"decoupled": True}}}


@pytest.mark.parametrize(
    ("steps", "parts", "found"),
    [
        (CHAIN, {}, None),
        (CHAIN, {"full": PRIORITY}, None),
        (BRANCHES, {}, ("whole", "full", "free", False)),
        (BRANCHES[::-1], {}, ("whole", "full", "free", False)),
        (BRANCHES, {"full": PRIORITY}, ("whole", "full", "free", False)),
        (BRANCHES, {"full": UNBOUNDED}, None),
        (BRANCHES, {"full": {}}, None),
        # The same model twice, beside itself and in a row.
        ((("full", ["IN"], "a"), ("full", ["IN"], "b")), {}, ("whole", "full", "full", False)),
        ((("full", ["IN"], "a"), ("full", ["a"], "b")), {}, None),
        # Before the branches, and behind them.
        ((("full", ["IN"], "m"), ("free", ["m"], "a"), ("free", ["m"], "b")), {}, None),
        ((("free", ["IN"], "a"), ("free", ["IN"], "b"), ("full", ["a", "b"], "c")), {}, None),
        # Behind one branch, while the other may go on.
        (
            (("free", ["IN"], "a"), ("free", ["a"], "b"), ("full", ["b"], "c"), ("o", ["a"], "d")),
            {},
            ("whole", "full", "o", False),
        ),
        # A decoupled model before, right before or not, and behind.
        ((("many", ["IN"], "m"), ("full", ["m"], "OUT")), {}, ("whole", "full", "many", True)),
        (
            (("many", ["IN"], "m"), ("free", ["m"], "n"), ("full", ["n"], "OUT")),
            {},
            ("whole", "full", "many", True),
        ),
        ((("full", ["IN"], "m"), ("many", ["m"], "OUT")), {}, None),
        # Of a part that is an ensemble, its own steps count, and that it is decoupled within.
        (
            (("inner", ["IN"], "OUT"),),
            {"inner": whole(*BRANCHES)},
            ("inner", "full", "free", False),
        ),
        ((("inner", ["IN"], "a"), ("free", ["IN"], "b")), {"inner": whole(*CHAIN)}, None),
        (
            (("inner", ["IN"], "m"), ("full", ["m"], "OUT")),
            {"inner": whole(("many", ["x"], "y"))},
            ("whole", "full", "inner", True),
        ),
        # What Triton refuses by itself: a ring, and a model that is not there.
        ((("full", ["a"], "b"), ("free", ["b"], "a")), {}, None),
        ((("full", ["IN"], "OUT"), ("nope", ["OUT"], "b")), {}, None),
    ],
)
def test_a_step_is_found_beside_which_another_may_run(steps, parts, found):
    """Neither in chains nor where no queue has an end is there one."""
    configs = {**PARTS, **parts, "whole": whole(*steps)}
    stuck = stuck_in({name: flow_of(message_of(config)) for name, config in configs.items()})
    assert (stuck and (stuck.ensemble, stuck.model, stuck.other, stuck.is_before)) == found


def test_both_kinds_of_config_say_the_same():
    """That of a folder, and that of a load."""
    text = """
        dynamic_batching {
          priority_queue_policy { key: 1 value: { max_queue_size: 1 } }
        }
        model_transaction_policy { decoupled: true }
        ensemble_scheduling { step {
          model_name: "a" input_map { key: "x" value: "IN" } output_map { key: "y" value: "m" }
        } }
    """
    config = {
        **PRIORITY,
        "model_transaction_policy": {"decoupled": True},
        "ensemble_scheduling": {
            "step": [{"model_name": "a", "input_map": {"x": "IN"}, "output_map": {"y": "m"}}]
        },
    }
    flow = flow_of(read_text(text))
    assert flow == flow_of(message_of(config))
    assert flow.is_bounded
    assert flow.is_decoupled


def several(x):
    """Give what comes in, twice."""
    yield {"y": x}
    yield {"y": x}


@pytest.fixture
def parts(load):
    """The models of the steps."""
    load(identity, name="free", max_batch_size=1)
    load(identity, name="full", max_batch_size=1, config=BOUNDED)
    load(several, name="many", max_batch_size=1)
    return load


@pytest.mark.parametrize(
    ("steps", "more", "error"),
    [
        (BRANCHES, {"outputs": ("OUT", "OTHER")}, BESIDE),
        (
            (("many", ["IN"], "m"), ("full", ["m"], "OUT")),
            {"model_transaction_policy": {"decoupled": True}},
            BEHIND,
        ),
    ],
)
def test_a_load_says_which_step(server, parts, steps, more, error):
    """And what there is to do; nothing is left of it."""
    with pytest.raises(UnsupportedError) as caught:
        server.load("whole", whole(*steps, **more))
    assert str(caught.value) == error
    assert not server.model("whole").is_ready()
    parts(identity, name="full", max_batch_size=1)
    model = server.load("whole", whole(*steps, **more))
    assert next(model.stream({"IN": row(1)}))["OUT"].tolist() == [[1]]
    server.unload("whole")


def test_a_part_that_gets_a_bound_is_found_by_the_next_request(server, parts):
    """Also from an ensemble above; what takes its place without one serves again."""
    parts(identity, name="full", max_batch_size=1)
    ensembles = {
        "whole": whole(*BRANCHES, outputs=("OUT", "OTHER")),
        "outer": {
            **whole(),
            "ensemble_scheduling": {
                "step": [
                    {
                        "model_name": "whole",
                        "model_version": -1,
                        "input_map": {"IN": "IN"},
                        "output_map": {"OTHER": "OUT"},
                    }
                ]
            },
        },
    }
    models = [server.load(name, config) for name, config in ensembles.items()]
    try:
        for config, is_refused in (({}, False), (BOUNDED, True), (PRIORITY, True), ({}, False)):
            parts(identity, name="full", max_batch_size=1, config=config)
            for model in models:
                if is_refused:
                    with pytest.raises(UnsupportedError) as caught:
                        model.infer({"IN": row(1)})
                    assert str(caught.value) == BESIDE
                else:
                    assert model.infer({"IN": row(1)})["OUT"].tolist() == [[1]]
    finally:
        server.unload("outer")
        server.unload("whole")


def test_an_ensemble_of_a_repository_is_refused_too(tmp_path):
    """By its load where its parts are there, or else by its requests."""
    folder = tmp_path / "whole"
    (folder / "1").mkdir(parents=True)
    steps = "".join(
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "x" value: "IN" }} '
        f'output_map {{ key: "y" value: "{tensor}" }} }}\n'
        for model, tensor in (("free", "OUT"), ("full", "OTHER"))
    )
    tensors = "".join(
        f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: -1 }}\n'
        for kind, name in (("input", "IN"), ("output", "OUT"), ("output", "OTHER"))
    )
    (folder / "config.pbtxt").write_text(
        f'platform: "ensemble"\nmax_batch_size: 1\n{tensors}ensemble_scheduling {{ {steps} }}\n'
    )
    spec = {"inputs": {"x": ("FP32", [-1])}, "outputs": {"y": ("FP32", [-1])}, "max_batch_size": 1}
    with Server(tmp_path, startup_models=[]) as server:
        server.load_function("free", identity, **spec)
        server.load_function("full", identity, **spec, config=BOUNDED)
        with pytest.raises(UnsupportedError) as caught:
            server.load("whole")
        assert str(caught.value) == BESIDE
        server.load_function("full", identity, **spec)
        assert server.load("whole").infer({"IN": row(1)})["OTHER"].tolist() == [[1]]


def test_a_queue_that_is_full_in_a_chain_is_an_error_of_the_request(server, parts):
    """There is never another step in flight; the ensemble goes on, and unloads."""
    held = Held()
    parts(held, name="full", max_batch_size=1, config=BOUNDED)
    model = server.load("whole", whole(*CHAIN))
    pending = [model.submit({"IN": row(1)})]
    try:
        held.wait()
        pending += [model.submit({"IN": row(1)}) for _ in range(4)]
        with pytest.raises(
            QueueFullError, match=r"in ensemble 'whole', .*Exceeds maximum queue size"
        ):
            pending[-1].result(30)
    finally:
        held.may_go.set()
        assert all(inference.wait(30) for inference in pending)
        server.unload("whole")
    assert pending[0].result()["OUT"].tolist() == [[1]]


SEQUENCED = {"sequence_batching": {}}
NEEDS = (
    "ensemble 'whole': the step of model 'full' may run beside 'free', and takes requests of "
    "sequences alone: Triton would never answer another one, or end the process "
    "(triton-inference-server/core#466); expected {}"
).format


@pytest.mark.parametrize(
    ("steps", "config", "is_found"),
    [
        (CHAIN, SEQUENCED, False),
        (BRANCHES, SEQUENCED, True),
        (BRANCHES, {"sequence_batching": {"iterative_sequence": True}}, False),
        (BRANCHES, BOUNDED, False),
        ((("many", ["IN"], "m"), ("full", ["m"], "OUT")), SEQUENCED, True),
    ],
)
def test_a_step_of_sequences_is_found_too(steps, config, is_found):
    """Where it may run with others; iterative sequences begin by themselves."""
    configs = {**PARTS, "full": config, "whole": whole(*steps)}
    flows = {name: flow_of(message_of(config)) for name, config in configs.items()}
    stuck = sequenced_in(flows)
    assert (stuck is not None) == is_found
    assert stuck is None or (stuck.ensemble, stuck.model) == ("whole", "full")


@pytest.mark.parametrize("order", [1, -1])
def test_a_request_of_no_sequence_is_refused_where_triton_would_not_answer(server, parts, order):
    """Or crash, by the order of the steps; of whatever kind it is, and after one that was right."""
    parts(identity, name="full", max_batch_size=4, config=SEQUENCED)
    parts(identity, name="free", max_batch_size=4)
    config = whole(*BRANCHES[::order], outputs=("OUT", "OTHER"), max_batch_size=4)
    model = server.load("whole", config)
    one, two = {"IN": row(1)}, {"IN": [[1.0], [2.0]]}
    right = {"correlation_id": 7, "sequence_start": True}
    try:
        for call in (
            lambda: model.infer(one),
            lambda: model.infer(one, sequence_start=True),
            lambda: model.submit(one, correlation_id=0),
            lambda: next(model.stream(one)),
            lambda: list(model.map([one, one])),
            lambda: model.prepare(one).infer(one),
        ):
            with pytest.raises(InvalidArgumentError) as caught:
                call()
            assert str(caught.value) == NEEDS("a correlation_id")
            assert model.infer(one, **right)["OTHER"].tolist() == [[1]]
        with pytest.raises(InvalidArgumentError) as caught:
            model.infer(two, **right)
        assert str(caught.value) == NEEDS("a batch of 1, not 2, as there is in sequences")
        with model.sequence() as sequence:
            for end in (False, True):
                assert sequence.infer(one, sequence_end=end)["OUT"].tolist() == [[1]]
    finally:
        server.unload("whole")
