# SPDX-License-Identifier: Apache-2.0
"""Triton Inference Server inside a Python process."""

__version__ = "0.1.0"
