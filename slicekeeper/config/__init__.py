# SPDX-License-Identifier: Apache-2.0
"""Configuration: settings, the policy file, and the parts of the manifests that follow from them."""
