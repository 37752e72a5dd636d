# SPDX-License-Identifier: Apache-2.0
"""The reporting sidecar of every GPU pod."""
