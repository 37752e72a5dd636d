/* SPDX-License-Identifier: Apache-2.0 */
/* The limiter's own thread: sees launches complete, keeps the connection, and replaces an
 * arbiter that is gone. */
#ifndef VC_KEEPER_THREAD_H
#define VC_KEEPER_THREAD_H

#include <stdbool.h>

/* Start the thread; false if there is none to be had. */
bool vc_keeper_start(void);

#endif
