/* SPDX-License-Identifier: Apache-2.0 */
/* The container's memory counter: reserve, call, settle. */
#ifndef VC_MEMORY_ACCOUNT_H
#define VC_MEMORY_ACCOUNT_H

#include "table.h"

/* Take bytes from the container's cap; false when they do not fit. */
bool vc_reserve(uint64_t bytes);
/* It first waits until the sum is known after an arbiter's restart. If a lock is held, wait before
 * taking it. */
void vc_await_others(void);
bool vc_reserve_now(uint64_t bytes);
void vc_unreserve(uint64_t bytes);
/* Book what the driver took already; the cap cannot refuse it any more. */
void vc_book(uint64_t bytes);
/* The same for one request of a program: small ones of a context share granules, as in the driver. */
bool vc_take(uint64_t bytes, const void *context);
void vc_give(uint64_t bytes, const void *context);
/* What was taken for a context that had no handle yet. */
void vc_account_rename(const void *from, const void *to);
/* Charged bytes that other processes can take hold of from now on; then, given back here, they stay
 * charged until the arbiter has seen that the driver does not hold them either. */
void vc_export(uint64_t bytes);
void vc_let_go(uint64_t bytes, const void *context);
/* The bytes of an entry that is gone from the table and from the driver. */
void vc_give_back(const struct vc_item *item);
/* Look for the arbiter's word on what was let go of. */
void vc_account_tend(void);
/* What the container's processes hold together, and what they may hold. */
uint64_t vc_held(void);
uint64_t vc_cap(void);
/* Our bytes move to another slot (a new connection), or are forgotten (a forked child). */
void vc_account_move(struct vc_slot *slot);
void vc_account_reset(void);

#endif
