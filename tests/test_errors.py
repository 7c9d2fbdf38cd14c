# SPDX-License-Identifier: Apache-2.0
"""The exceptions: one class for each code of the C API, with Triton's words and our context."""

import pickle

import pytest

import tritonffi._enums as enums
import tritonffi._errors as errors
from tritonffi import _call
from tritonffi._native import ffi, lib

CLASSES = {
    "UNKNOWN": errors.UnknownError,
    "INTERNAL": errors.InternalError,
    "NOT_FOUND": errors.NotFoundError,
    "INVALID_ARG": errors.InvalidArgumentError,
    "UNAVAILABLE": errors.UnavailableError,
    "UNSUPPORTED": errors.UnsupportedError,
    "ALREADY_EXISTS": errors.AlreadyExistsError,
    "CANCELLED": errors.CancelledError,
}


# Error objects are its own.
pytestmark = pytest.mark.usefixtures("library")


def raised(code, text, context=""):
    """Return what `check` raises for an error object of Triton's."""
    with pytest.raises(errors.TritonError) as caught:
        _call.check(lib.TRITONSERVER_ErrorNew(code, text), context)
    return caught.value


def test_every_code_of_the_c_api_has_a_class():
    """A code without a class would lose its meaning."""
    assert list(CLASSES) == [code.name for code in enums.ErrorCode]


@pytest.mark.parametrize("name", CLASSES)
def test_an_error_object_becomes_the_class_of_its_code(name):
    """Class, code and text come from the object."""
    code = enums.ErrorCode[name]
    error = raised(code, "größer als erlaubt".encode())
    assert type(error) is CLASSES[name]
    assert error.code == code
    assert str(error) == "größer als erlaubt"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"/build/a b/logging.h 131: no\n", "/build/a b/logging.h 131: no"),
        (b"/build/src/logging.h 131: no such file\n", "no such file"),
        (b"/build/core.cc 7: two\nlines", "two\nlines"),
        (b"/models/a.onnx 7: no source", "/models/a.onnx 7: no source"),
    ],
)
def test_where_triton_was_built_is_no_part_of_an_error(text, shown):
    """The path of a source file on another machine helps nobody."""
    assert str(raised(lib.TRITONSERVER_ERROR_INTERNAL, text)) == shown


def test_success_raises_nothing():
    """NULL is success."""
    assert _call.check(ffi.NULL, "anything") is None


def test_the_context_comes_before_tritons_words():
    """What was being done, then what went wrong."""
    error = raised(lib.TRITONSERVER_ERROR_NOT_FOUND, b"no such version", "model 'x'")
    assert str(error) == "model 'x': no such version"
    error = raised(lib.TRITONSERVER_ERROR_NOT_FOUND, b"model 'x' has no such version", "model 'x'")
    assert str(error) == "model 'x' has no such version"


def test_an_error_without_words_says_what_it_is():
    """Queues cancel without a word."""
    error = raised(lib.TRITONSERVER_ERROR_CANCELLED, b"", "model 'x'")
    assert str(error) == "model 'x': The inference was cancelled"


def test_text_that_is_not_utf8_is_shown():
    """A path in a message may be any bytes."""
    assert str(raised(lib.TRITONSERVER_ERROR_INTERNAL, b"/data/\xff")) == "/data/\\xff"


def test_a_code_of_a_newer_library_is_an_unknown_error():
    """The number is kept."""
    error = errors.error_from_code(99, "from the future")
    assert type(error) is errors.UnknownError
    assert error.code == 99
    assert errors.UnknownError.code == lib.TRITONSERVER_ERROR_UNKNOWN


def test_two_classes_cannot_claim_one_code():
    """A mistake in the table shows at import."""

    class Second(errors.TritonError):
        """Another."""

    claim = errors._for_code(lib.TRITONSERVER_ERROR_CANCELLED)
    with pytest.raises(AssertionError, match="Second and CancelledError both claim error code 7"):
        claim(Second)


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.InternalError, RuntimeError),
        (errors.NotFoundError, LookupError),
        (errors.InvalidArgumentError, ValueError),
        (errors.UnsupportedError, NotImplementedError),
        (errors.LibraryNotFoundError, ImportError),
    ],
)
def test_errors_are_the_builtin_ones_too(cls, builtin):
    """Who expects a ValueError need not know ours."""
    assert issubclass(cls, errors.TritonError)
    assert issubclass(cls, builtin)


@pytest.mark.parametrize(
    ("cls", "code"),
    [
        (errors.ClosedError, lib.TRITONSERVER_ERROR_UNAVAILABLE),
        (errors.LibraryNotFoundError, lib.TRITONSERVER_ERROR_NOT_FOUND),
    ],
)
def test_our_own_errors_have_a_code_as_well(cls, code):
    """`code` can be relied on for any TritonError."""
    assert cls("x").code == code


def test_an_error_crosses_processes():
    """Class, text and code survive pickling."""
    error = pickle.loads(pickle.dumps(errors.error_from_code(99, "text")))
    assert (type(error), str(error), error.code) == (errors.UnknownError, "text", 99)
