/* SPDX-License-Identifier: Apache-2.0 */
/* What a context takes on each GPU: tried out once, for the driver has no call that says it. */
#ifndef AR_PROBE_H
#define AR_PROBE_H

/* Fill in every GPU's context_bytes, where the driver's library is there and lets us. Before any
 * thread is started. */
void ar_probe(const char *library);

#endif
