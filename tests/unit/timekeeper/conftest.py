# SPDX-License-Identifier: Apache-2.0
"""The timekeeper's tests run on SQLite and on PostgreSQL."""

from databases import _kept_url, database_url, databases

__all__ = ["_kept_url", "database_url", "databases"]
