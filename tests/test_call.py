# SPDX-License-Identifier: Apache-2.0
"""The calling convention: texts in and out, messages, scoped handles, calls that take long."""

import gc
import importlib
import os
import signal
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from tritonffi import _call
from tritonffi._errors import InvalidArgumentError, TritonError, UnsupportedError
from tritonffi._native import ffi, lib

# What is called here is Triton.
pytestmark = pytest.mark.usefixtures("library")


def message_of(text):
    """Make a function that gives a message of this text, as a server's functions do."""
    return lambda out: lib.TRITONSERVER_MessageNewFromSerializedJson(out, text, len(text))


def open_and_join(gate):
    """Let the one call that was left alone go on, and wait for its end."""
    (thread,) = [t for t in threading.enumerate() if t.name.startswith("tritonffi: loading")]
    gate.set()
    thread.join()


def test_the_raw_api_is_all_there():
    """`capi` loads the library and gives its names."""
    capi = importlib.import_module("tritonffi.capi")
    major = capi.ffi.new("uint32_t *")
    minor = capi.ffi.new("uint32_t *")
    capi.check(capi.lib.TRITONSERVER_ApiVersion(major, minor))
    assert major[0] == 1
    assert sorted(capi.__all__) == ["FunctionModel", "backend_directory", "check", "ffi", "lib"]


@pytest.mark.parametrize("text", ["", "plain", "größer", "日本", "\U0001f40d"])
def test_a_str_becomes_utf8(text):
    """As Triton has it everywhere."""
    assert _call.encode(text, "name") == text.encode()


@pytest.mark.parametrize("wrong", [None, b"bytes", 1, ["x"]])
def test_what_is_no_str_is_refused_by_name(wrong):
    """Before C would read it as something else."""
    with pytest.raises(TypeError, match=f"^server_id must be a str, not {type(wrong).__name__}$"):
        _call.encode(wrong, "server_id")


def test_a_nul_inside_is_refused():
    """C would end the text there, silently."""
    with pytest.raises(ValueError, match=r"^model name must not contain NUL: 'a\\x00b'$"):
        _call.encode("a\0b", "model name")


def test_a_lone_surrogate_is_refused():
    """There is no UTF-8 for it."""
    with pytest.raises(ValueError, match=r"^model name cannot be written as UTF-8: 'a\\ud800'$"):
        _call.encode("a\ud800", "model name")


def test_a_path_keeps_bytes_that_are_no_text():
    """File names are bytes, and Python has its own way to say them."""
    name = os.fsdecode(b"/models/\xff")
    assert _call.encode_path(name, "path") == b"/models/\xff"
    assert _call.encode_path(Path(name), "path") == b"/models/\xff"


@pytest.mark.parametrize("wrong", [None, b"bytes", 1])
def test_what_is_no_path_is_refused_by_name(wrong):
    """Bytes too: whether they are text is not for us to guess."""
    message = f"^log_file must be a str or a path, not {type(wrong).__name__}$"
    with pytest.raises(TypeError, match=message):
        _call.encode_path(wrong, "log_file")


def test_a_path_with_a_nul_is_refused():
    """No file can have that name."""
    with pytest.raises(ValueError, match=r"^log_file must not contain NUL: 'a\\x00b'$"):
        _call.encode_path("a\0b", "log_file")


def test_a_null_string_is_empty():
    """Triton gives NULL where it has nothing to say."""
    assert _call.string(ffi.NULL) == ""


def test_a_handle_lives_as_long_as_its_block():
    """It is made at the start, deleted at the end, and works in between."""
    with _call.owned(
        "struct TRITONSERVER_BufferAttributes *",
        lib.TRITONSERVER_BufferAttributesNew,
        lib.TRITONSERVER_BufferAttributesDelete,
    ) as attributes:
        _call.check(lib.TRITONSERVER_BufferAttributesSetByteSize(attributes, 77))
        size = _call.out_int("size_t", lib.TRITONSERVER_BufferAttributesByteSize, attributes)
    assert size == 77


def test_a_handle_is_deleted_when_its_block_fails():
    """Exactly once, and the block's own error is what comes out."""
    deleted = []

    def delete(handle):
        deleted.append(handle)
        return lib.TRITONSERVER_ServerOptionsDelete(handle)

    made = []

    def fail():
        with _call.owned(
            "struct TRITONSERVER_ServerOptions *", lib.TRITONSERVER_ServerOptionsNew, delete
        ) as options:
            made.append(options)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert deleted == made


def test_a_handle_is_deleted_when_a_signal_handler_raises_right_after_its_making():
    """It is known where it is before it is made."""
    made, deleted = [], []

    def new(slot):
        _call.check(lib.TRITONSERVER_ServerOptionsNew(slot))
        made.append(slot[0])
        raise KeyboardInterrupt

    def delete(handle):
        deleted.append(handle)
        return lib.TRITONSERVER_ServerOptionsDelete(handle)

    with (
        pytest.raises(KeyboardInterrupt),
        _call.owned("struct TRITONSERVER_ServerOptions *", new, delete),
    ):
        pytest.fail("entered")
    assert len(made) == 1
    assert deleted == made


def test_a_message_is_deleted_when_a_signal_handler_raises_right_after_its_making(monkeypatch):
    """As any handle."""
    made, deleted = [], []

    def function(slot):
        _call.check(message_of(b"[]")(slot))
        made.append(slot[0])
        raise KeyboardInterrupt

    def delete(message):
        deleted.append(message)
        return lib.TRITONSERVER_MessageDelete(message)

    monkeypatch.setattr(_call, "lib", SimpleNamespace(TRITONSERVER_MessageDelete=delete))
    with pytest.raises(KeyboardInterrupt):
        _call.json_of(function)
    assert len(made) == 1
    assert deleted == made


def test_a_handle_that_cannot_be_made_raises_with_context():
    """Nothing is deleted then, since there is nothing."""
    refuse = lib.TRITONSERVER_ErrorNew
    with (
        pytest.raises(UnsupportedError, match=r"^custom metric: not here$"),
        _call.owned(
            "struct TRITONSERVER_Metric *",
            lambda _: refuse(lib.TRITONSERVER_ERROR_UNSUPPORTED, b"not here"),
            lambda _: pytest.fail("deleted what was never made"),
            context="custom metric",
        ),
    ):
        pytest.fail("entered without a handle")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a": [1, 2.5, "x", null, true]}', {"a": [1, 2.5, "x", None, True]}),
        ('{"größe": "日本"}'.encode(), {"größe": "日本"}),
        (b"[]", []),
    ],
)
def test_a_message_is_read_as_json(text, value):
    """All of it, by its length: it has no end mark."""
    assert _call.json_of(message_of(text)) == value


def test_the_shape_of_a_message_is_asked_for():
    """An object or an array, and the other one is an error that shows it."""
    assert _call.json_object(message_of(b'{"a": 1}')) == {"a": 1}
    assert _call.json_list(message_of(b"[1]")) == [1]
    with pytest.raises(TypeError, match=r"^metadata: expected a JSON object, got \[1\]$"):
        _call.json_object(message_of(b"[1]"), context="metadata")
    with pytest.raises(TypeError, match=r"^index: expected a JSON array, got \{'a': 1\}$"):
        _call.json_list(message_of(b'{"a": 1}'), context="index")


def test_a_message_that_is_no_json_is_an_error():
    """Triton does not look into it, so we do."""
    with pytest.raises(ValueError, match="Expecting"):
        _call.json_of(message_of(b"{"))


def test_parameters_of_every_type_are_made():
    """The array has one pointer for each, in order."""
    values = {"s": "größe", "i": -(2**63), "t": True, "d": 0.5, "b": b"raw\0bytes", "e": b""}
    with _call.parameters(values, "model 'x'") as (array, count):
        assert count == len(values)
        assert len({int(ffi.cast("uintptr_t", array[i])) for i in range(count)} - {0}) == count


def test_no_parameters_are_an_empty_array():
    """Which is what C takes for none."""
    with _call.parameters({}, "model 'x'") as (array, count):
        assert (len(array), count) == (0, 0)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"a": 2**63}, InvalidArgumentError, "parameter 'a' does not fit into 64 bits: 922337203"),
        (
            {"a": None},
            TypeError,
            "parameter 'a' must be a str, bytes, bool, int or float, not None",
        ),
        ({"a": "x\0y"}, ValueError, "parameter 'a' must not contain NUL"),
        ({"a\0": "x"}, ValueError, "the name of a parameter must not contain NUL"),
        ({1: "x"}, TypeError, "the name of a parameter must be a str, not int"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused_by_name(values, error, message):
    """And those made before it are deleted."""
    with (
        pytest.raises(error, match=f"^model 'x': {message}"),
        _call.parameters({"good": 1, **values}, "model 'x'"),
    ):
        pytest.fail("entered with a wrong parameter")


def test_a_long_call_gives_its_result():
    """From the main thread, on a thread of its own."""
    thread = _call.interruptible(threading.current_thread, "loading")
    assert thread is not threading.current_thread()
    assert thread.daemon
    assert thread.name == "tritonffi: loading"


def test_a_long_call_raises_its_error():
    """The very exception, where the caller is."""
    error = TritonError("no")

    def call():
        raise error

    with pytest.raises(TritonError) as caught:
        _call.interruptible(call, "loading")
    assert caught.value is error


def test_other_threads_make_the_call_themselves():
    """They get no signals, so they need no helper."""
    seen = []
    thread = threading.Thread(
        target=lambda: seen.append(_call.interruptible(threading.current_thread, "loading"))
    )
    thread.start()
    thread.join()
    assert seen == [thread]


@pytest.mark.parametrize("on_main", [True, False])
def test_a_timeout_leaves_the_call_to_end_alone(on_main):
    """The caller is told, and `abandoned` gets what the call brings later, on any thread."""
    gate = threading.Event()
    abandoned = []

    def call():
        gate.wait()
        return "late"

    def leave():
        with pytest.raises(TimeoutError, match=r"^loading 'x' is not over after 0\.01 s$"):
            _call.interruptible(call, "loading 'x'", timeout=0.01, abandoned=abandoned.append)
        assert abandoned == []
        open_and_join(gate)

    if on_main:
        leave()
    else:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    assert abandoned == ["late"]


def test_a_call_that_is_over_in_time_is_not_abandoned():
    """Its result has one owner."""
    result = _call.interruptible(lambda: "x", "loading", timeout=10, abandoned=pytest.fail)
    assert result == "x"


def test_ctrl_c_ends_the_waiting():
    """At once, though the call goes on in C; what it brings goes to `abandoned`."""
    main = threading.main_thread()
    assert threading.current_thread() is main
    gate = threading.Event()
    abandoned = []

    def call():
        signal.pthread_kill(main.ident, signal.SIGINT)
        gate.wait()
        return "late"

    with pytest.raises(KeyboardInterrupt):
        _call.interruptible(call, "loading", abandoned=abandoned.append)
    assert abandoned == []
    open_and_join(gate)
    assert abandoned == ["late"]


def test_ctrl_c_during_the_start_of_the_thread_is_ctrl_c(monkeypatch):
    """Python itself may make a RuntimeError of it; the call goes on, and once only."""
    gate = threading.Event()
    calls = []
    start = threading.Thread.start

    def interrupted(thread):
        start(thread)
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("release unlocked lock")

    def call():
        calls.append(threading.current_thread())
        gate.wait()

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _call.interruptible(call, "loading", abandoned=calls.append)
    open_and_join(gate)
    assert len(calls) == 2
    assert calls[0] is not threading.main_thread()
    assert calls[1] is None


@pytest.mark.parametrize("is_left", [False, True])
def test_a_long_call_that_fails_holds_nothing(is_left):
    """The error, its frames and what they have go at once, without the garbage collector."""

    class Big:
        pass

    alive = []

    def fail(gate):
        big = Big()
        alive.append(weakref.ref(big))
        gate.wait()
        raise KeyError

    def call():
        gate = threading.Event()
        if not is_left:
            gate.set()
        with suppress(KeyError, TimeoutError):
            _call.interruptible(lambda: fail(gate), "loading", timeout=0.01 if is_left else 30)
            pytest.fail("nothing was raised")
        if is_left:
            open_and_join(gate)

    gc.collect()
    gc.disable()
    try:
        call()
        assert [reference() for reference in alive] == [None]
    finally:
        gc.enable()


def test_an_abandoned_call_that_fails_is_silent():
    """There is nobody to tell, and nothing to clean up."""
    gate = threading.Event()

    def call():
        gate.wait()
        raise TritonError("late")

    with pytest.raises(TimeoutError):
        _call.interruptible(call, "loading", timeout=0.01, abandoned=pytest.fail)
    open_and_join(gate)
