# SPDX-License-Identifier: Apache-2.0
"""The kube-scheduler extender and the reclaimer."""
