# SPDX-License-Identifier: Apache-2.0
"""The parts of the API server's API that Slicekeeper uses."""
