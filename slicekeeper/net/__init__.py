# SPDX-License-Identifier: Apache-2.0
"""HTTP: the servers of all parts, and the clients that all parts share."""
