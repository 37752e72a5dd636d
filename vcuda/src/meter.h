/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the driver keeps for later (a pool, the graphs of a device) is charged by its own
 * word. The word is read without a lock; a meter puts it in order with what is under way.
 */
#ifndef VC_METER_H
#define VC_METER_H

#include "os.h"

struct vc_meter {
  struct vc_lock lock;
  _Atomic uint64_t charged; /* written under the lock, read by anyone */
  uint64_t pending;         /* of it, for calls that are under way */
  _Atomic uint32_t turn;    /* counts what may have made a reading old */
};

/* What the driver has reserved at this moment. */
typedef uint64_t vc_reading(void *of);

/* Take bytes from the cap for a call that may need them; false when they do not fit. */
bool vc_meter_begin(struct vc_meter *meter, uint64_t bytes);
/* The call is over: charge what the driver says now. */
void vc_meter_end(struct vc_meter *meter, uint64_t bytes, vc_reading *read, void *of);
void vc_meter_settle(struct vc_meter *meter, vc_reading *read, void *of);

#endif
