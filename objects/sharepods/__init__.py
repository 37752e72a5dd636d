# SPDX-License-Identifier: Apache-2.0
"""KubeShare's SharePods: makes a pod of each, and mirrors what becomes of it."""
