# SPDX-License-Identifier: Apache-2.0
"""HTTP: how every part serves it, and the clients that all parts share."""
