# SPDX-License-Identifier: Apache-2.0
"""A small cluster in memory, and local mode on it."""
