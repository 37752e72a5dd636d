# SPDX-License-Identifier: Apache-2.0
"""What NVML tells a program in a seat; printed as one line of JSON."""

from __future__ import annotations

import ctypes
import json
import sys
import time


class Process(ctypes.Structure):
    """nvmlProcessInfo_v2_t."""

    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]


class Rates(ctypes.Structure):
    """nvmlUtilization_t."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


def main() -> None:
    """Hold 100 MiB and look."""
    cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
    context, address, device = ctypes.c_void_p(), ctypes.c_ulonglong(), ctypes.c_void_p()
    cuda.cuInit(0)
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)
    taken = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(100 << 20))
    nvml.nvmlInit_v2()
    nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    room = ctypes.c_uint(64)
    listed = (Process * 64)()
    verdict = nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(room), listed)
    small = ctypes.c_uint(0)
    too_small = nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(small), None)
    rates = Rates()
    nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(rates))
    time.sleep(float(sys.argv[1]))
    nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(rates))
    print(
        json.dumps(
            {
                "taken": taken,
                "verdict": verdict,
                "processes": [[listed[i].pid, listed[i].used] for i in range(room.value)],
                "too_small": [too_small, small.value],
                "gpu": rates.gpu,
            }
        )
    )


if __name__ == "__main__":
    main()
