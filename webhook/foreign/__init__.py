# SPDX-License-Identifier: Apache-2.0
"""Requests that were written for another GPU sharing system, read as ours: one file for each system."""
