# SPDX-License-Identifier: Apache-2.0
"""What follows the cluster and acts on it: watches, the controller, what it writes on pods."""
