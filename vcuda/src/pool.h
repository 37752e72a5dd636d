/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the driver keeps in pools: charged by what a pool has reserved, not by what is used.
 */
#ifndef VC_POOL_H
#define VC_POOL_H

/* Bring every pool's and the graphs' charge to what the driver says. */
void vc_pools_settle(void);
void vc_pools_reset(void);

#endif
