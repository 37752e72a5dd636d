/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the driver keeps in pools: charged by what a pool has reserved, not by what is used. */
#ifndef VC_POOL_H
#define VC_POOL_H

#include "hook.h"

/* Bring the charge of every pool to what the driver says it has reserved. */
void vc_pools_settle(void);
/* Take bytes from the cap; if they do not fit, what pools have let go of since the last look may be enough. */
bool vc_pools_reserve(uint64_t bytes);
/* A context is about to be destroyed, and its events with it. */
void vc_pools_freeze(CUcontext context);
/* In a forked child. */
void vc_pools_reset(void);

#endif
