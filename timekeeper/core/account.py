# SPDX-License-Identifier: Apache-2.0
"""Keys and versions of budget accounts."""

from __future__ import annotations

from typing import NewType

AccountId = NewType("AccountId", int)
"""The key of a budget account in the ledger: a namespace's, a team's or an organisation's."""

Revision = NewType("Revision", int)
"""The number of changes of an account: data read at an older revision is read again."""
