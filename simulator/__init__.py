# SPDX-License-Identifier: Apache-2.0
"""A small in-memory cluster, and local mode on it."""
