# SPDX-License-Identifier: Apache-2.0
"""The kernel that every part shares: names, units, the GPU request, wire types, settings, clients."""

__version__ = "0.1.0"
