# SPDX-License-Identifier: Apache-2.0
"""GpuPolicies: tells in their status which of them hold, and for how many namespaces."""
