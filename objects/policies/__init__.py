# SPDX-License-Identifier: Apache-2.0
"""GpuPolicies: report in their status whether they are in force, and for how many namespaces."""
