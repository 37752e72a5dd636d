# SPDX-License-Identifier: Apache-2.0
"""Handlers: each parses, authorises, calls and serialises, and does nothing else."""
