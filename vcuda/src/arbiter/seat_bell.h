/* SPDX-License-Identifier: Apache-2.0 */
/* A seat's bell, and the thread that hears it and wakes the GPU's. */
#ifndef AR_SEAT_BELL_H
#define AR_SEAT_BELL_H

#include "gpu.h"

struct ar_bell;

/* NULL if there is no memory, no descriptor or no thread. */
struct ar_bell *ar_bell_open(struct ar_gpu *gpu);
void ar_bell_close(struct ar_bell *bell);
/* The descriptor that the seat's processes get. */
int ar_bell_descriptor(const struct ar_bell *bell);

#endif
