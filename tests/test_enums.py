# SPDX-License-Identifier: Apache-2.0
"""The enumerations: all that the C API has, by the names and values that it has."""

import enum
import re
from pathlib import Path

import pytest

import tritonffi._enums as enums
from tritonffi import _call
from tritonffi._native import ffi, lib

HEADER = Path(__file__).parent.parent / "csrc" / "tritonserver.h"

# Python name: (C type, what all enumerators of the type begin with)
NAMES = {
    "ErrorCode": ("Error_Code", "ERROR_"),
    "DataType": ("DataType", "TYPE_"),
    "MemoryType": ("MemoryType", "MEMORY_"),
    "ParameterType": ("ParameterType", "PARAMETER_"),
    "InstanceGroupKind": ("InstanceGroupKind", "INSTANCEGROUPKIND_"),
    "LogLevel": ("LogLevel", "LOG_"),
    "LogFormat": ("LogFormat", "LOG_"),
    "ModelControlMode": ("ModelControlMode", "MODEL_CONTROL_"),
    "RateLimitMode": ("RateLimitMode", "RATE_LIMIT_"),
    "ModelBatchFlag": ("ModelBatchFlag", "BATCH_"),
    "ModelIndexFlag": ("ModelIndexFlag", "INDEX_FLAG_"),
    "ModelTxnPropertyFlag": ("ModelTxnPropertyFlag", "TXN_"),
    "RequestFlag": ("RequestFlag", "REQUEST_FLAG_"),
    "RequestReleaseFlag": ("RequestReleaseFlag", "REQUEST_RELEASE_"),
    "ResponseCompleteFlag": ("ResponseCompleteFlag", "RESPONSE_COMPLETE_"),
    "MetricKind": ("MetricKind", "METRIC_KIND_"),
    "MetricFormat": ("MetricFormat", "METRIC_"),
    "TraceLevel": ("InferenceTraceLevel", "TRACE_LEVEL_"),
    "TraceActivity": ("InferenceTraceActivity", "TRACE_"),
}


# It has names for some of the values.
pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture(scope="module")
def declared():
    """Read the enumerations of our header: {C type: {enumerator: value}}."""
    text = HEADER.read_text(encoding="utf-8")
    return {
        name: {n: int(v) for n, v in re.findall(r"TRITONSERVER_(\w+) = (\d+)", body)}
        for body, name in re.findall(r"typedef enum {([^}]*)} TRITONSERVER_(\w+);", text)
    }


def test_all_enumerations_are_there(declared):
    """19 types with 76 values, each in one class and no class besides."""
    classes = [
        name
        for name, c in vars(enums).items()
        if isinstance(c, enum.EnumMeta) and c not in (enum.IntEnum, enum.IntFlag)
    ]
    assert classes == list(NAMES)
    assert {c for c, _ in NAMES.values()} == set(declared)
    assert (len(declared), sum(map(len, declared.values()))) == (19, 76)


@pytest.mark.parametrize("name", NAMES)
def test_members_have_the_names_and_values_of_c(declared, name):
    """The C name without what all have in common, and the value of the header."""
    c_type, prefix = NAMES[name]
    members = {prefix + n: int(v) for n, v in getattr(enums, name).__members__.items()}
    assert members == declared[c_type]


@pytest.mark.parametrize("name", NAMES)
def test_bits_are_flags_and_the_rest_are_not(name):
    """What may be set together can be combined."""
    bits = name.endswith("Flag") or name == "TraceLevel"
    assert issubclass(getattr(enums, name), enum.IntFlag if bits else enum.IntEnum)


@pytest.mark.parametrize("datatype", enums.DataType)
def test_element_types_bear_tritons_own_names(datatype):
    """The names of configurations and of metadata are the members'; INVALID has none."""
    name = _call.string(lib.TRITONSERVER_DataTypeString(datatype))
    if datatype is enums.DataType.INVALID:
        assert name == "<invalid>"
    else:
        assert name == datatype.name
    assert lib.TRITONSERVER_StringToDataType(name.encode()) == datatype


@pytest.mark.parametrize(
    ("cls", "function"),
    [
        (enums.MemoryType, lib.TRITONSERVER_MemoryTypeString),
        (enums.ParameterType, lib.TRITONSERVER_ParameterTypeString),
        (enums.InstanceGroupKind, lib.TRITONSERVER_InstanceGroupKindString),
        (enums.TraceActivity, lib.TRITONSERVER_InferenceTraceActivityString),
    ],
)
def test_the_library_knows_every_value(cls, function):
    """A value that the library cannot name is one that we made up."""
    names = [ffi.string(function(value)) for value in cls]
    assert len(set(names)) == len(cls)
    assert not [name for name in names if name.startswith(b"<")]
