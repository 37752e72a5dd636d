/* SPDX-License-Identifier: Apache-2.0 */
/* NVML, loaded at run time: an arbiter's image needs no NVIDIA library. */
#ifndef AR_NVML_LIBRARY_H
#define AR_NVML_LIBRARY_H

#include <stdbool.h>
#include <stdint.h>

struct ar_nvml_process {
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance, compute_instance;
};

/* Find the GPUs and fill ar_gpus; false, with a reason, without NVML. A fake NVML brings its clock along. */
bool ar_nvml_open(const char *library, const char **why);
#define AR_NV_UNKNOWN UINT64_MAX /* the driver does not say how much memory a process has */

/* Return the processes with a context on a GPU, of CUDA or of graphics, each once, for the caller to free; NULL if NVML
 * does not say. */
struct ar_nvml_process *ar_nvml_processes(int gpu, int *count);

/* Return whether the driver says how much of a GPU's memory is in use. */
bool ar_nvml_used(int gpu, uint64_t *bytes);

/* Return how busy a GPU was on average since `since`, per cent, and set `since` to the time of the last sample; -1 if
 * the driver does not say. */
int ar_nvml_busy(int gpu, uint64_t *since);

struct ar_nvml_use {
  unsigned pid;
  unsigned long long when;
  unsigned sm, memory, encoder, decoder; /* per cent of the last moment */
};
/* Return what each process used of a GPU a moment ago, for the caller to free; NULL if the driver does not say. */
struct ar_nvml_use *ar_nvml_uses(int gpu, int *count);

#endif
