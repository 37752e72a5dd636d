/* SPDX-License-Identifier: Apache-2.0 */
/* The container's memory counter: reserve, call, settle. */
#ifndef VC_MEMORY_ACCOUNT_H
#define VC_MEMORY_ACCOUNT_H

#include "handle_table.h"

/* Take bytes from the container's cap; false if they do not fit. It first waits until the sum over the container's
 * processes is known again after an arbiter's restart, at most 3 s. */
bool vc_reserve(uint64_t bytes);
/* The two halves of vc_reserve, for callers that hold a lock: wait before taking it, reserve with it. */
void vc_await_others(void);
bool vc_reserve_now(uint64_t bytes);
/* Give them back. */
void vc_unreserve(uint64_t bytes);
/* Charge bytes that the driver has taken already, even if that exceeds the cap. */
void vc_book(uint64_t bytes);
/* Reserve and give back what one request of a program takes: rounded up to granules, which requests of up to 1 MiB of
 * the same context share, as in the driver. */
bool vc_take(uint64_t bytes, const void *context);
void vc_give(uint64_t bytes, const void *context);
/* Small requests that were taken for a context without a handle yet belong to this context. */
void vc_account_rename(const void *from, const void *to);
/* Give back what other processes could hold as well: it stays charged until the arbiter has seen that the driver holds
 * it no more. */
void vc_let_go(uint64_t bytes, const void *context);
/* Give back, or let go of, the bytes of an entry that is gone from the table and from the driver. */
void vc_give_back(const struct vc_item *item);
/* Release what the arbiter says the driver holds no more. The keeper calls it regularly. */
void vc_account_tend(void);
/* Bytes that the container's processes hold together, and that they may hold. */
uint64_t vc_held(void);
uint64_t vc_cap(void);
/* Publish this process's bytes in another slot (after a new connection), or forget them (in a forked child). */
void vc_account_move(struct vc_slot *slot);
void vc_account_reset(void);

#endif
