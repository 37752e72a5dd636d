# SPDX-License-Identifier: Apache-2.0
"""Types of the messages between processes."""
