/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VC_CONTEXT_H
#define VC_CONTEXT_H

/* In a forked child: free the lock that another thread may have held. */
void vc_context_reset(void);

#endif
