# SPDX-License-Identifier: Apache-2.0
"""The self-managed CA: signs the webhook's certificate and tells the API server whom to trust."""
