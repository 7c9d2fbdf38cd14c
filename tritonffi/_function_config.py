# SPDX-License-Identifier: Apache-2.0
"""
The model config of a function model, made of what `load_function` is told.

Everything that can be told wrong is told here, before Triton sees it: of a config that it cannot
parse Triton says little, and to the terminal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

from tritonffi._call import encode, encode_name, plain_text
from tritonffi._config_checks import check_config
from tritonffi._config_text import read_json
from tritonffi._errors import InvalidArgumentError, UnsupportedError
from tritonffi._numbers import shown, whole
from tritonffi._spec import FUNCTION_BACKEND
from tritonffi._tensor import element_type

if TYPE_CHECKING:
    from tritonffi._call import JSON

#: Name to (data type, dimensions without the batch axis).
Declarations: TypeAlias = Mapping[str, tuple[str, Sequence[int]]]

#: Where csrc/backend.c finds which function a model belongs to.
TOKEN_PARAMETER = "tritonffi.token"  # noqa: S105 -- it names a counter, not a secret

_MAX_INT32 = 2**31 - 1
_MAX_NAME = 255
_OURS = ("name", "backend", "platform", "runtime", "max_batch_size")
_UNSUPPORTED = {
    "batch_input": "inputs that the backend makes up",
    "batch_output": "outputs that the backend cuts in its own way",
    "ensemble_scheduling": "an ensemble; load that as a model of its own",
}
# Triton's default. With any other one an older version would be served too, or in the place of the
# new one, and the response cache would answer with what an older function gave.
_ONE_VERSION = {"latest": {"num_versions": 1}}
_CONTROL_DATATYPES = {
    "int32_false_true": "INT32",
    "fp32_false_true": "FP32",
    "bool_false_true": "BOOL",
}


@dataclass(frozen=True)
class Declared:
    """
    One input or output, as the callable sees it.

    Attributes:
        name: Its name.
        datatype: Triton's name of the element type, such as "FP32".
        c_datatype: The same, as the value in the C API.
        shape: Without the batch axis; -1 is any size.
        optional: Whether a request may leave this input out.
        is_control: Whether the sequence batcher adds it to each request.
    """

    name: str
    datatype: str
    c_datatype: int
    shape: tuple[int, ...]
    optional: bool = False
    is_control: bool = False


@dataclass(frozen=True)
class FunctionConfig:
    """
    What a function model is made of.

    Attributes:
        inputs: In the declared order, then those that the sequence batcher adds.
        outputs: In the declared order.
        is_batching: Whether requests are stacked along a first axis.
        instances: How many calls may run at a time.
        warm_up_calls: How often each instance is called before the load returns.
        config: The model config, without a token.
        is_cached: Whether Triton may answer in the function's place what it has answered before.
    """

    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    is_batching: bool
    instances: int
    warm_up_calls: int
    config: dict[str, JSON]
    is_cached: bool

    def with_token(self, token: int) -> dict[str, JSON]:
        """Return the model config for the function of this token."""
        parameters = _dict(self.config.get("parameters", {}), "parameters")
        mine: dict[str, JSON] = {TOKEN_PARAMETER: {"string_value": str(token)}}
        return {**self.config, "parameters": {**parameters, **mine}}


def check_model_name(name: str) -> str:
    """
    Return the name as a plain text, if a model can have it: it becomes the name of a folder.

    Raises:
        TypeError: It is not a str.
        InvalidArgumentError: It is empty, too long, or more than one plain component of a path.
    """
    encoded = encode_name(name)
    name = plain_text(name, "a model name")
    if not name or name in (".", "..") or "/" in name or len(encoded) > _MAX_NAME:
        raise InvalidArgumentError(
            f"a model's name must be one plain component of a path, of 1 to {_MAX_NAME} bytes, "
            f"not {name!r}"
        )
    return name


def function_config(
    name: str,
    inputs: Declarations,
    outputs: Declarations,
    max_batch_size: int,
    config: Mapping[str, object] | None,
    *,
    decoupled: bool = False,
) -> FunctionConfig:
    """
    Check and put together what `FunctionModel` is told; see there.

    Raises:
        TypeError: An argument is of the wrong type.
        InvalidArgumentError: A name, data type, dimension or part of the config is impossible.
        UnsupportedError: The config asks for what function models do not do.
    """
    name = check_model_name(name)
    model = f"model {name!r}"
    max_batch_size = whole(max_batch_size, f"{model}: max_batch_size")
    if not 0 <= max_batch_size <= _MAX_INT32:
        raise InvalidArgumentError(
            f"{model}: max_batch_size must be 0 to {_MAX_INT32}, not {shown(max_batch_size)}"
        )
    extra = _checked(config, model)
    _check_decoupled(extra, decoupled, model)
    input_entries = _entries(inputs, extra.pop("input", []), model, "input")
    output_entries = _entries(outputs, extra.pop("output", []), model, "output")
    if not output_entries:
        raise InvalidArgumentError(f"{model}: a model needs at least one output")
    groups = _instance_groups(extra.pop("instance_group", None), model)
    made: dict[str, JSON] = {
        "name": name,
        "backend": FUNCTION_BACKEND,
        "max_batch_size": max_batch_size,
        "input": cast("JSON", input_entries),
        "output": cast("JSON", output_entries),
        "instance_group": cast("JSON", groups),
        **extra,
    }
    controls = _sequence_controls(made, model)
    check_config(read_json(json.dumps(made)) or {}, name, lambda _: None)  # it has no files
    declared = [_declared(entry) for entry in input_entries]
    is_cached = bool(_dict(extra.get("response_cache", {}), "response_cache", model).get("enable"))
    if is_cached:
        _check_cacheable(declared, max_batch_size, model)
    declared += controls
    return FunctionConfig(
        inputs=tuple(declared),
        outputs=tuple(_declared(entry) for entry in output_entries),
        is_batching=max_batch_size > 0,
        instances=sum(map(_instances, groups)),
        warm_up_calls=_warm_up_calls(extra.get("model_warmup"), model),
        config=made,
        is_cached=is_cached,
    )


def _checked(config: Mapping[str, object] | None, model: str) -> dict[str, JSON]:
    """Copy the user's part of the config, without what is ours to say or not done at all."""
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise TypeError(f"{model}: config must be a dict, not {type(config).__name__}")
    try:
        extra: dict[str, JSON] = json.loads(json.dumps(dict(config), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{model}: config must be of JSON's types: {error}") from error
    for key in extra:
        if key in _OURS:
            raise InvalidArgumentError(f"{model}: config: {key!r} is not for config to say")
        if key in _UNSUPPORTED:
            raise UnsupportedError(f"{model}: config: {key!r} asks for {_UNSUPPORTED[key]}")
        if key != key.lower():
            raise InvalidArgumentError(
                f"{model}: config: {key!r}: keys are written as in config.pbtxt, 'instance_group'"
            )
    parameters = _dict(extra.get("parameters", {}), "parameters", model)
    if extra.get("version_policy", _ONE_VERSION) != _ONE_VERSION:
        raise UnsupportedError(
            f"{model}: config: 'version_policy': a function has one version at a time, the latest"
        )
    if TOKEN_PARAMETER in parameters:
        raise InvalidArgumentError(
            f"{model}: config: parameter {TOKEN_PARAMETER!r} is not for config to say"
        )
    return extra


def _check_decoupled(extra: dict[str, JSON], decoupled: bool, model: str) -> None:  # noqa: FBT001
    """Have the config say what the kind of callable says."""
    key = "model_transaction_policy"
    policy = _dict(extra.get(key, {}), key, model)
    said = policy.get("decoupled", decoupled)
    if not isinstance(said, bool):
        raise TypeError(f"{model}: config: 'decoupled' must be a bool, not {said!r}")
    if said and not decoupled:
        raise InvalidArgumentError(
            f"{model}: config: 'decoupled': a function that returns gives one response to a "
            "request; for any number of them, yield them"
        )
    if decoupled and not said:
        raise InvalidArgumentError(
            f"{model}: config: 'decoupled': a generator function gives any number of responses, "
            "so its model is decoupled"
        )
    if decoupled:
        extra[key] = {**policy, "decoupled": True}
        if _dict(extra.get("response_cache", {}), "response_cache", model).get("enable"):
            raise UnsupportedError(
                f"{model}: config: 'response_cache': Triton caches no decoupled model"
            )


def _check_cacheable(inputs: Sequence[Declared], max_batch_size: int, model: str) -> None:
    """Refuse inputs that Triton's cache would mistake for others: it looks at their bytes alone."""
    for declared in inputs:
        if declared.shape.count(-1) + (max_batch_size > 0) > 1:
            raise UnsupportedError(
                f"{model}: config: 'response_cache': Triton's cache does not look at shapes, and "
                f"would take inputs {declared.name!r} of the same bytes in different ones for the "
                "same; leave one dimension free, that of the batch included"
            )


def _entries(
    declarations: Declarations, extra: JSON, model: str, kind: str
) -> list[dict[str, JSON]]:
    """Write declared inputs or outputs as the config does, with what the user's config adds."""
    if not isinstance(declarations, Mapping):
        raise TypeError(
            f"{model}: {kind}s must be a dict of name to (data type, dimensions), "
            f"not {type(declarations).__name__}"
        )
    entries: dict[str, dict[str, JSON]] = {}
    for name, declaration in declarations.items():
        what = f"{model}: the name of an {kind}"
        if not encode(name, what):
            raise InvalidArgumentError(f"{what} must not be empty")
        text = plain_text(name, what)
        entries[text] = {"name": text, **_entry(declaration, f"{model}, {kind} {text!r}")}
    for more in _list(extra, kind, model):
        added = _dict(more, f"{kind}[]", model)
        entry = entries.get(str(added.get("name")))
        if entry is None:
            raise InvalidArgumentError(
                f"{model}: config: no {kind} {added.get('name')!r} is declared"
            )
        for key in ("data_type", "dims"):
            if key in added:
                raise InvalidArgumentError(
                    f"{model}: config: {kind} {added['name']!r}: {key!r} is declared already"
                )
        entry.update(added)
    return list(entries.values())


def _entry(declaration: object, what: str) -> dict[str, JSON]:
    """Check one declaration."""
    wanted = 'expected (data type, dimensions), such as ("FP32", [-1])'
    if not isinstance(declaration, (tuple, list)) or len(declaration) != 2:  # noqa: PLR2004
        raise TypeError(f"{what}: {wanted}, got {declaration!r}")
    datatype, dims = declaration
    if not isinstance(datatype, str) or not isinstance(dims, Sequence) or isinstance(dims, str):
        raise TypeError(f"{what}: {wanted}, got {declaration!r}")
    try:
        row = element_type(datatype)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{what}: {error}") from None
    sizes = [whole(size, f"{what}: dimensions", "ints") for size in dims]
    if not sizes:
        raise InvalidArgumentError(f"{what}: Triton has no tensors without dimensions; take [1]")
    if any(size < -1 or size == 0 for size in sizes):
        raise InvalidArgumentError(
            f"{what}: a dimension must be at least 1, or -1 for any, not {sizes}"
        )
    return {"data_type": row.config_name, "dims": cast("JSON", sizes)}


def _declared(entry: Mapping[str, JSON]) -> Declared:
    row = element_type(cast("str", entry["data_type"]))
    reshape = cast("Mapping[str, JSON]", entry.get("reshape") or {"shape": entry["dims"]})
    shape = tuple(map(int, cast("list[int]", reshape.get("shape", []))))
    name = cast("str", entry["name"])
    return Declared(name, row.name, int(row.datatype), shape, bool(entry.get("optional", False)))


def _instance_groups(groups: JSON, model: str) -> list[dict[str, JSON]]:
    """Complete the instance groups: a callable runs on the CPU, whatever it uses inside."""
    made = []
    for entry in _list([{}] if groups is None or groups == [] else groups, "instance_group", model):
        group: dict[str, JSON] = {"kind": "KIND_CPU", "count": 1}
        group.update(_dict(entry, "instance_group[]", model))
        count = group["count"]
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidArgumentError(
                f"{model}: config: instance_group: count must be at least 1, not {count!r}"
            )
        made.append(group)
    if all(group.get("passive", False) for group in made):
        raise InvalidArgumentError(
            f"{model}: config: instance_group: all instances are passive, which get no requests"
        )
    return made


def _instances(group: Mapping[str, JSON]) -> int:
    gpus = group.get("gpus")
    return cast("int", group["count"]) * max(1, len(gpus) if isinstance(gpus, list) else 1)


def _warm_up_calls(samples: JSON, model: str) -> int:
    """Count as Triton does: without rows a sample is skipped, without a count it runs once."""
    calls = 0
    for entry in _list(samples or [], "model_warmup", model):
        sample = _dict(entry, "model_warmup[]", model)
        rows, count = sample.get("batch_size", 0), sample.get("count", 1)
        for value in (rows, count):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(
                    f"{model}: config: model_warmup: batch_size and count must be ints, "
                    f"not {value!r}"
                )
        calls += max(1, cast("int", count)) if rows else 0
    return calls


def _sequence_controls(config: Mapping[str, JSON], model: str) -> list[Declared]:
    """Return the inputs that the sequence batcher adds to each request."""
    batching = _dict(config.get("sequence_batching", {}), "sequence_batching", model)
    if batching.get("state"):
        raise UnsupportedError(
            f"{model}: config: 'state': a function keeps the state of its sequences itself"
        )
    added = []
    for entry in _list(batching.get("control_input", []), "control_input", model):
        control = _dict(entry, "control_input[]", model)
        datatype = "INT32"
        for form in _list(control.get("control", []), "control", model):
            values = _dict(form, "control[]", model)
            for key, implied in _CONTROL_DATATYPES.items():
                datatype = implied if values.get(key) else datatype
            datatype = str(values.get("data_type", datatype))
        row = element_type(datatype)
        name = str(control.get("name"))
        added.append(Declared(name, row.name, int(row.datatype), (1,), is_control=True))
    return added


def _dict(value: JSON, key: str, model: str = "") -> dict[str, JSON]:
    if not isinstance(value, dict):
        raise TypeError(f"{model}: config: {key!r} must be a dict, not {type(value).__name__}")
    return value


def _list(value: JSON, key: str, model: str) -> list[JSON]:
    if not isinstance(value, list):
        raise TypeError(f"{model}: config: {key!r} must be a list, not {type(value).__name__}")
    return value
