# SPDX-License-Identifier: Apache-2.0
"""Objects of the cluster and who acts on them: budgets and policies as objects, and SharePods."""
