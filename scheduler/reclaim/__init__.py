# SPDX-License-Identifier: Apache-2.0
"""How pods over budget give way to waiting pods in budget: choosing, evicting, keeping the place, asking again."""
