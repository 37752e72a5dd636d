# SPDX-License-Identifier: Apache-2.0
"""GPUs: what a node has of them, what part of one a device is, what a pod asks for."""
