/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VC_MEMORY_H
#define VC_MEMORY_H

#include "hook.h"
#include "table.h"

/* Before the driver's call: take the bytes, or false with nothing taken. */
bool vc_memory_begin(uint64_t bytes);
/* After it: note what the key holds, or give the bytes back. */
CUresult vc_memory_end(CUresult result, enum vc_kind kind, uint64_t key, uint64_t bytes);
/* The same bytes for a context, or for what will be one. */
bool vc_memory_take(uint64_t bytes, const void *context);
/* Other processes can hold on to what lies at this address. */
void vc_memory_exported(CUdeviceptr address);
/* Everything that dies with a context. */
void vc_memory_forget(CUcontext context);
/* What was mapped into a sparse array, which is gone. */
void vc_vmm_forget(const void *array);
void vc_vmm_reset(void);
void vc_graph_reset(void);

#endif
