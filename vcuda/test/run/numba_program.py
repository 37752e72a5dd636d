# SPDX-License-Identifier: Apache-2.0
"""Compile and launch a kernel with numba-cuda, and move data there and back."""

import numpy as np
from numba import cuda


@cuda.jit
def scale(values, factor):
    i = cuda.grid(1)
    if i < values.size:
        values[i] *= factor


host = np.arange(4096, dtype=np.float32)
device = cuda.to_device(host)
stream = cuda.stream()
for _ in range(20):
    scale[16, 256](device, 2.0)
    scale[16, 256, stream](device, 0.5)
stream.synchronize()
cuda.synchronize()
# The fake GPU runs no code: what comes back is what went there.
assert np.array_equal(device.copy_to_host(), host)
free, total = cuda.current_context().get_memory_info()
assert total == 1 << 30, total
print(f"numba: fine ({total >> 20} MiB seen, {free >> 20} free)")
