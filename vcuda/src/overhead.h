/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VC_OVERHEAD_H
#define VC_OVERHEAD_H

#include "hook.h"

/* A context that is being made. */
struct vc_making {
  uint64_t bytes;
  void *place; /* the key of the context until there is one */
};
/* Before the driver's call: reserve what a new context needs; false if it does not fit. */
bool vc_context_begin(struct vc_making *making);
/* After it: charge the context for it, or give it back if the call failed or the context was there before. */
void vc_context_end(CUresult result, CUcontext context, struct vc_making *making);
/* Note under another name what a context is charged for, with all that is held there. */
void vc_context_rename(void *from, void *to);
/* Whether this context is charged. */
bool vc_context_known(CUcontext context);
/* Charge a context that the driver has made again under its old handle, even if that exceeds the cap. */
void vc_context_again(CUcontext context);

#endif
