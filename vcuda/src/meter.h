/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the driver keeps for later (a pool, the graphs of a device) is charged by the driver's own figures. These
 * are read without a lock; a meter puts them in order with the requests under way.
 */
#ifndef VC_METER_H
#define VC_METER_H

#include "clock_and_lock.h"

struct vc_meter {
  struct vc_lock lock;
  _Atomic uint64_t charged; /* written under the lock, read by anyone */
  uint64_t pending;         /* bytes of requests under way */
  uint32_t held;            /* as long as any: the charge does not fall */
  _Atomic bool exported;    /* what it gives back, others could hold */
  _Atomic uint32_t turn;    /* counts what makes a reading old */
};

/* What the driver says: bytes that it has reserved, and how many of them are in use. Ask for those in use first: what
 * is reserved in between is then in both figures, or in the first only. */
struct vc_reading {
  uint64_t reserved, used;
  bool failed; /* it gave no figures */
};
typedef struct vc_reading vc_read(void *of);

/* Reserve as many bytes as a request of this size can make the driver's own reserve grow by; false if they do not
 * fit. */
bool vc_meter_begin(struct vc_meter *meter, uint64_t bytes, vc_read *read, void *of);
/* The request is over: charge what the driver says now. */
void vc_meter_end(struct vc_meter *meter, uint64_t bytes, vc_read *read, void *of);
/* Around a call that needs memory that is charged already (+1, -1): meanwhile the charge does not fall, though another
 * thread may give memory back. */
void vc_meter_hold(struct vc_meter *meter, int change);
/* Bring the charge to what the driver says now. */
void vc_meter_settle(struct vc_meter *meter, vc_read *read, void *of);

#endif
