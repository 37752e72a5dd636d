/* SPDX-License-Identifier: Apache-2.0 */
/* NVML, loaded at run time: an arbiter's image needs no NVIDIA library. */
#ifndef AR_NV_H
#define AR_NV_H

#include <stdbool.h>
#include <stdint.h>

struct ar_nv_process {
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance, compute_instance;
};

/* Find the GPUs and fill ar_gpus. A fake NVML brings its clock along. */
bool ar_nv_open(const char *library, const char **why);
/* The processes with a context on a GPU; -1 when NVML does not say. */
int ar_nv_processes(int gpu, struct ar_nv_process *out, int room);

#endif
