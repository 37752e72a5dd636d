# SPDX-License-Identifier: Apache-2.0
"""The agent on each GPU node: publishes its GPUs and gives every GPU container its seat."""
