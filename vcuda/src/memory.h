/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VC_MEMORY_H
#define VC_MEMORY_H

#include "hook.h"
#include "table.h"

/* Before the driver's call: take the bytes, or false with nothing taken. */
bool vc_memory_begin(uint64_t bytes);
/* After it: note what the key holds, or give the bytes back. */
CUresult vc_memory_end(CUresult result, enum vc_kind kind, uint64_t key, uint64_t bytes);
/* Everything that dies with a context. */
void vc_memory_forget(CUcontext context);
/* What was mapped into a sparse array, which is gone. */
void vc_vmm_forget(const void *array);
void vc_vmm_reset(void);
void vc_graph_reset(void);

#endif
