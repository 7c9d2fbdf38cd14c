# SPDX-License-Identifier: Apache-2.0
"""Names the cffi module to build; everything else is in pyproject.toml and build_ffi.py."""

from setuptools import setup

setup(cffi_modules=["build_ffi.py:ffibuilder"])
