/* SPDX-License-Identifier: Apache-2.0 */
/* Who is on the GPU without a limiter, and what the driver holds beyond what was asked for. */
#ifndef AR_AUDIT_H
#define AR_AUDIT_H

#include "json.h"

/* Look at NVML, at most every half second; the event loop calls it. */
void ar_audit_tick(uint64_t now);
/* Append what was found, as JSON. */
void ar_audit_write(struct ar_text *out);

#endif
