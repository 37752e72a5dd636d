# SPDX-License-Identifier: Apache-2.0
"""Where a pod goes: what fits, what it costs, and which policy says so. Pure: no I/O, no lock, no clock."""
