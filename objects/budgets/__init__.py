# SPDX-License-Identifier: Apache-2.0
"""Budgets as objects of the cluster: keep the timekeeper in step with them, and write their status."""
