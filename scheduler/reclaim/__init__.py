# SPDX-License-Identifier: Apache-2.0
"""Evict pods over budget for waiting pods in budget: choose, evict, reserve the place, trigger a retry."""
