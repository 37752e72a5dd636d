/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VC_CONTEXT_MEMORY_H
#define VC_CONTEXT_MEMORY_H

#include "hook.h"

/* Before the driver's call: reserve what a new context needs. Return the key under which it is known until there is a
 * handle; NULL if it does not fit. */
void *vc_context_begin(void);
/* After it: charge the context for it, or give it back if the call failed or the context was there before. */
void vc_context_end(CUresult result, CUcontext context, void *place);
/* Note under another name what a context is charged for, with all that is held there. */
void vc_context_rename(void *from, void *to);
/* Whether this context is charged. */
bool vc_context_known(CUcontext context);
/* Charge a context that the driver has made again under its old handle, even if that exceeds the cap. */
void vc_context_again(CUcontext context);
/* Give back everything that went with a context. */
void vc_context_forget(CUcontext context);

#endif
