# SPDX-License-Identifier: Apache-2.0
"""Budgets as objects of the cluster: keeps the timekeeper in step with them, and tells in them how budgets stand."""
