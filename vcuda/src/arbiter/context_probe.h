/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory a context takes on each GPU: tried out once, because the driver has no call that says it. */
#ifndef AR_CONTEXT_PROBE_H
#define AR_CONTEXT_PROBE_H

/* Fill in every GPU's context_bytes, if the driver's library can be loaded and used. Call it before any thread is
 * started. */
void ar_context_probe(const char *library);

#endif
