# SPDX-License-Identifier: Apache-2.0
"""Pure computation: values in, values out. No SQL, no client; the time is a parameter."""
