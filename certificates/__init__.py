# SPDX-License-Identifier: Apache-2.0
"""The self-managed CA: signs the servers' certificates, and tells the API server and namespaces which CAs to trust."""
