/* SPDX-License-Identifier: Apache-2.0 */
/* The arbiter's commands. */
#ifndef AR_CLI_H
#define AR_CLI_H

#include "saved_seats.h"

struct ar_options {
  bool fake, once;
  const char *folder, *rule, *seat, *vclass;
  int gpu, core, limit, idle_exit;
  unsigned long long memory;
};

/* Each returns the command's exit status; run does not return if the program starts. */
int ar_serve(const struct ar_options *options);
int ar_run(const struct ar_options *options, char **program);
int ar_top(const struct ar_options *options);
int ar_ask(const struct ar_options *options, const char *line);

/* Return the arbiter's folder: the one that the options name, or this user's. */
const char *ar_folder_of(const struct ar_options *options);
/* Write the path of a file that was built beside this program; false if it is too long. */
bool ar_beside(char out[AR_PATH], const char *name);
/* Send a line to the arbiter and return its answer, for the caller to free; NULL if there is none. */
char *ar_request(const char *folder, const char *line);

#endif
