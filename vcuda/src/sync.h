/* SPDX-License-Identifier: Apache-2.0 */
/* Calls by which the program waits for the GPU, and calls that let streams wait. */
#ifndef VC_SYNC_H
#define VC_SYNC_H

#include "hook.h"

/* Before a synchronising call of the program; returns when it begins, 0 if nothing is in flight. */
uint64_t vc_sync_begin(void);
/* After it: what the thread had launched there before is complete. With no handle: in all streams of the
 * current context, or of the one given. */
void vc_sync_end(const CUstream *handle, CUcontext context, uint64_t since);
/* Before and after a call that lets a stream wait for something else than this GPU's work. */
void vc_sync_wait_begin(CUstream handle);
void vc_sync_wait_end(CUstream handle, CUresult result);

/* The same for a call that lets all streams of a context wait; those that only their own threads can name count as at
 * work meanwhile. */
void vc_sync_context_wait_begin(CUcontext context);
void vc_sync_context_wait_end(CUcontext context);

#endif
