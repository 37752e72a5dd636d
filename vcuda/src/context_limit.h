/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of contexts, and the kernels that need more than a context has. */
#ifndef VC_CONTEXT_LIMIT_H
#define VC_CONTEXT_LIMIT_H

#include "hook.h"

/* How many kernels are known that need deeper stacks than contexts have anyway. */
extern _Atomic uint32_t vc_deep_kernels;
/* Take from the cap what a context needs to run a kernel, which may be a function or a library's; false if it does
 * not fit. */
bool vc_context_runs(const void *kernel, CUcontext context);
/* Note what a context's limits take under another name. */
void vc_context_limit_rename(CUcontext from, CUcontext to);
/* A module or a library is about to go, and its kernels with it. */
void vc_context_limit_forget(const void *image);
/* In a forked child. */
void vc_context_limit_reset(void);

#endif
