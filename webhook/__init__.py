# SPDX-License-Identifier: Apache-2.0
"""The admission webhook: checks and mutates pods that ask for GPUs."""
