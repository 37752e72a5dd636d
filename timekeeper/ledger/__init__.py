# SPDX-License-Identifier: Apache-2.0
"""What changes the ledger and what reads it: records appended, settled and checked in one transaction."""
