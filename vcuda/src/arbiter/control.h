/* SPDX-License-Identifier: Apache-2.0 */
/* The control socket: one JSON object a line in, one a line out. */
#ifndef AR_CONTROL_H
#define AR_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

/* Listen, and no longer at the socket before; false, with a reason, if that is impossible. */
bool ar_control_open(const char **why);
/* Disconnect peers that do not read their answers. */
void ar_control_tick(uint64_t now);

#endif
