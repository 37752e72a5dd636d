# SPDX-License-Identifier: Apache-2.0
"""What the database holds: one table, or what is asked of several, a file."""
