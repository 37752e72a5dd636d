/* SPDX-License-Identifier: Apache-2.0 */
/* Calls by which the program waits for the GPU, and calls that make streams wait. */
#ifndef VC_SYNC_H
#define VC_SYNC_H

#include "hook.h"

/* Before a synchronising call of the program. Returns the time, or 0 if nothing is in flight. */
uint64_t vc_sync_begin(void);
/* After the call succeeded: what the thread had launched there before `since` is complete. Without a handle, in all
 * streams of the context, or of the current one if it is NULL. */
void vc_sync_end(const CUstream *handle, CUcontext context, uint64_t since);
/* Before and after a call that makes a stream wait for something other than this GPU's work. */
void vc_sync_wait_begin(CUstream handle);
void vc_sync_wait_end(CUstream handle, CUresult result);

/* The same for a call that makes all streams of a context wait, of which the second is made only if it succeeded.
 * Streams that only their own threads can name count as active meanwhile. */
void vc_sync_context_wait_begin(CUcontext context);
void vc_sync_context_wait_end(CUcontext context);

#endif
