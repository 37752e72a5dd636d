# SPDX-License-Identifier: Apache-2.0
"""KubeShare's SharePods: create a pod for each, and mirror its status."""
