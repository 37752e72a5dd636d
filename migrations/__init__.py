# SPDX-License-Identifier: Apache-2.0
"""The timekeeper's database migrations; `slicekeeper timekeeper migrate` walks them."""
