/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VC_OVERHEAD_H
#define VC_OVERHEAD_H

#include "hook.h"

/* Take what a new context needs, before it is made; false when it does not fit. */
struct vc_making {
  uint64_t bytes;
  void *place; /* the key of the context until there is one */
};
bool vc_context_begin(struct vc_making *making);
void vc_context_end(CUresult result, CUcontext context, struct vc_making *making);
bool vc_context_known(CUcontext context);
/* It was made again under its old name; the cap is not asked. */
void vc_context_again(CUcontext context);

#endif
