# SPDX-License-Identifier: Apache-2.0
"""What people decide: settings, the policy file, and what of the manifests follows from them."""
