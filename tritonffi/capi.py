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
"""

from __future__ import annotations

from tritonffi._call import check
from tritonffi._library import load
from tritonffi._native import ffi, lib

__all__ = ["check", "ffi", "lib"]

load()
