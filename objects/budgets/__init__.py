# SPDX-License-Identifier: Apache-2.0
"""Budgets as objects of the cluster: keeps the timekeeper in step with them, and writes their status."""
