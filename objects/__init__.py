# SPDX-License-Identifier: Apache-2.0
"""Operators for objects of the cluster: budgets and policies as objects, and SharePods."""
