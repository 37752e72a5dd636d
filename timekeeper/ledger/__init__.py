# SPDX-License-Identifier: Apache-2.0
"""Operations on the ledger: records are appended, settled and checked in one transaction."""
