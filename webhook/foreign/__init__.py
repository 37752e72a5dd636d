# SPDX-License-Identifier: Apache-2.0
"""Requests that were written for another GPU sharing system, read as ours: one file for each system.

What KubeShare's pods say is read by `slicekeeper.gpu.kubeshare`, because the operator of its SharePods reads it, too.
"""
