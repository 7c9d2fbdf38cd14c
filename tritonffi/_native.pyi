# SPDX-License-Identifier: Apache-2.0
# The compiled extension. What it holds is declared in csrc/, which no type checker reads.

from typing import Any, TypeAlias

ffi: Any
lib: Any

# Any value of cffi, for the annotations of parameters.
CData: TypeAlias = Any
