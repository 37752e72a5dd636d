/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the driver keeps for later (a pool, the graphs of a device) is charged by its own
 * word. The word is read without a lock; a meter puts it in order with the requests under way.
 */
#ifndef VC_METER_H
#define VC_METER_H

#include "os.h"

struct vc_meter {
  struct vc_lock lock;
  _Atomic uint64_t charged; /* written under the lock, read by anyone */
  uint64_t pending;         /* bytes of requests under way */
  uint32_t held;            /* as long as any: the charge does not fall */
  _Atomic uint32_t turn;    /* counts what makes a reading old */
};

/* What the driver says: bytes it has reserved, and how many of them are not free for a request. To
 * be asked in the other order: what is reserved in between is then in both or in the first. */
struct vc_reading {
  uint64_t reserved, used;
  bool failed; /* it said nothing */
};
typedef struct vc_reading vc_read(void *of);

/* Take from the cap by how much a request of so many bytes can make the driver's reserve grow;
 * false if that does not fit. */
bool vc_meter_begin(struct vc_meter *meter, uint64_t bytes, vc_read *read, void *of);
/* The request is over: charge what the driver says now. */
void vc_meter_end(struct vc_meter *meter, uint64_t bytes, vc_read *read, void *of);
/* Around what needs memory that is charged already: another thread may be about to give it back. */
void vc_meter_hold(struct vc_meter *meter, int change);
void vc_meter_settle(struct vc_meter *meter, vc_read *read, void *of);

#endif
