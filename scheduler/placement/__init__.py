# SPDX-License-Identifier: Apache-2.0
"""Placement of pods: what fits, its price, and the policies. Pure: no I/O, no lock, no clock."""
