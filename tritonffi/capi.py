# SPDX-License-Identifier: Apache-2.0
"""
The C API itself, for those who want it: all of it, and as it is.

Importing this module loads the library. What the functions mean, and who owns what, is said in
``csrc/tritonserver.h``. A function that can fail returns an error object; give it to `check`, which
raises the exception that belongs to it and deletes it.

    >>> from tritonffi.capi import check, ffi, lib
    >>> major, minor = ffi.new("uint32_t *"), ffi.new("uint32_t *")
    >>> check(lib.TRITONSERVER_ApiVersion(major, minor))
    >>> major[0]
    1

Callbacks must be C functions, because Triton calls them on threads of its own: those called
``tffi_handover_...`` in ``csrc/tritonffi.h`` keep what they get until Python fetches it.
``examples/simple_capi.py`` shows a whole program.
"""

from __future__ import annotations

import os
from pathlib import Path

from tritonffi._call import check
from tritonffi._errors import InvalidArgumentError
from tritonffi._functions import FunctionModel
from tritonffi._library import assemble_backends, load
from tritonffi._native import ffi, lib

__all__ = ["FunctionModel", "backend_directory", "check", "ffi", "lib"]

load()


def backend_directory(folder: str | os.PathLike[str]) -> Path:
    """Make a folder with the backends that came with Triton and the one behind `FunctionModel`.

    Args:
        folder: Where to make it; it must not exist. Keep it until the server is deleted.

    Returns:
        Its path, for ``TRITONSERVER_ServerOptionsSetBackendDirectory``.

    Raises:
        InvalidArgumentError: There is something already.
    """
    path = Path(folder)
    if os.path.lexists(path):
        raise InvalidArgumentError(f"backend directory {path}: it exists already")
    return assemble_backends(path, load(), ())
