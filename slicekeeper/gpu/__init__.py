# SPDX-License-Identifier: Apache-2.0
"""GPUs: the inventory of a node, the fraction of a GPU that a device is, the requests of a pod."""
