# SPDX-License-Identifier: Apache-2.0
"""What the books hold, as the wire shows it."""
