# SPDX-License-Identifier: Apache-2.0
"""The API server, as far as Slicekeeper uses it."""
