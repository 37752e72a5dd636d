# SPDX-License-Identifier: Apache-2.0
"""Pure computation: values in, values out. No SQL, no client, no clock but the one that is given."""
