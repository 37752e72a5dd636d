# SPDX-License-Identifier: Apache-2.0
"""Conversion of requests that were written for other GPU sharing systems: one file for each system.

KubeShare's pods are read by `slicekeeper.gpu.kubeshare`, because the operator of its SharePods needs that too.
"""
