# SPDX-License-Identifier: Apache-2.0
"""Follow the cluster and act on it: watches, the controller, and its changes of pods."""
