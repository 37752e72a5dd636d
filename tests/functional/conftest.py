# SPDX-License-Identifier: Apache-2.0
"""Servers that keep a ledger are tested on SQLite and on PostgreSQL."""

from support.databases import _kept_url, database_url, databases, server

__all__ = ["_kept_url", "database_url", "databases", "server"]
