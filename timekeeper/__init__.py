# SPDX-License-Identifier: Apache-2.0
"""The timekeeper: budgets, ledger, REST, enforcement."""
