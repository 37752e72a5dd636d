/* SPDX-License-Identifier: Apache-2.0 */
/* The folder, and the seats' policies on disk, from which a restarted arbiter takes up its work. */
#ifndef AR_STATE_H
#define AR_STATE_H

#include "json.h"
#include "seat.h"

/* Fill a configuration from the fields of a request; unknown fields are an error. */
bool ar_state_read(const struct ar_object *object, struct ar_config *config, const char **why);
void ar_state_write(const struct ar_config *config, struct ar_text *out);
bool ar_state_save(const struct ar_config *config);
void ar_state_forget(const char *name);
void ar_state_each(void (*visit)(const struct ar_config *));
bool ar_state_any(void);

#endif
