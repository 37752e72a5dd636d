/* SPDX-License-Identifier: Apache-2.0 */
/* Who is on the GPU without a limiter, and what the driver holds beyond what was asked for. */
#ifndef AR_UNLIMITED_PROCESSES_H
#define AR_UNLIMITED_PROCESSES_H

#include "json.h"

/* Look at NVML, at most every half second; the event loop calls it. */
void ar_unlimited_tick(uint64_t now);
/* Append what was found, as JSON. */
void ar_unlimited_write(struct ar_text *out);

#endif
