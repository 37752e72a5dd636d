# SPDX-License-Identifier: Apache-2.0
"""The admission webhook: validate and mutate pods that request GPUs."""
