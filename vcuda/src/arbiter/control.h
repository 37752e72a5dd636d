/* SPDX-License-Identifier: Apache-2.0 */
/* The control socket: one JSON object a line in, one a line out. */
#ifndef AR_CONTROL_H
#define AR_CONTROL_H

#include <stdbool.h>

void *ar_control_open(int fd);
/* False when the peer is gone or has gone too far. */
bool ar_control_read(void *peer);
void ar_control_close(void *peer);

#endif
