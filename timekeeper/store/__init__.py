# SPDX-License-Identifier: Apache-2.0
"""Access to the database: one file per table, or per query over several tables."""
