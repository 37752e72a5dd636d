/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VC_MODULE_H
#define VC_MODULE_H

#include "hook.h"

/* Held while it changes which contexts there are, or which libraries: each library is charged in each context, once. */
extern struct vc_lock vc_libraries_lock;
/* With the lock held: take from the cap the variables of all libraries for a context that is made, or for the place of
 * one that is still to be made; false if they do not fit. Forced, they are booked all the same. */
bool vc_libraries_into(const void *context, bool forced);
/* In a forked child. */
void vc_libraries_reset(void);

#endif
