# SPDX-License-Identifier: Apache-2.0
"""The database itself: engine, tables, transactions, migrations."""
