# SPDX-License-Identifier: Apache-2.0
"""Views: data of the books as wire types."""
