# SPDX-License-Identifier: Apache-2.0
"""The self-managed CA: sign the servers' certificates, and publish the trusted CAs to the API server and namespaces."""
