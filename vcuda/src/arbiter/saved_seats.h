/* SPDX-License-Identifier: Apache-2.0 */
/* The arbiter's folder, with the seats' configurations on disk, from which a restarted arbiter goes on. */
#ifndef AR_SAVED_SEATS_H
#define AR_SAVED_SEATS_H

#include "abi.h"
#include "json.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define AR_NAME 64
#define AR_PATH 512

struct ar_config {
  char name[AR_NAME];
  int gpu;
  uint32_t core, limit; /* per cent */
  uint64_t memory;
  uint32_t vclass;
  pid_t root;       /* the latest program for which it was requested; 0: it stays until it is dropped */
  char cgroup[256]; /* part of its processes' cgroup path; empty: unknown */
};

/* Everything under one folder: control.sock, seats/NAME/seat.sock, state/NAME.json, NAME.held. */
bool ar_folder_open(const char *path, const char **why);
/* Make what is missing of it. */
bool ar_folder_make(void);
bool ar_path(char out[AR_PATH], const char *format, ...);

/* Fill a configuration from the fields of a request; unknown fields are an error. */
bool ar_state_read(const struct ar_object *object, struct ar_config *config, const char **why);
bool ar_state_save(const struct ar_config *config);
void ar_state_forget(const char *name);
/* Keep what is known of a seat's processes, as bytes; false if it cannot be written. */
bool ar_state_keep(const char *name, const void *data, size_t size);
/* Read what was kept, and return how many bytes. */
size_t ar_state_kept(const char *name, void *out, size_t size);
/* Visit (unless it is NULL) all that were kept, and return how many there are. */
int ar_state_each(void (*visit)(const struct ar_config *));

#endif
