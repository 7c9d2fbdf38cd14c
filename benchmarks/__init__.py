# SPDX-License-Identifier: Apache-2.0
"""Measurements, run as `python -m benchmarks [NAME]`; none of them is part of the tests."""
