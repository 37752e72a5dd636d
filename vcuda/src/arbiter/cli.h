/* SPDX-License-Identifier: Apache-2.0 */
/* The arbiter's commands. */
#ifndef AR_CLI_H
#define AR_CLI_H

#include <stdbool.h>
#include <stddef.h>

struct ar_options {
  bool fake, once;
  const char *folder, *rule, *seat, *vclass;
  int gpu, core, limit, idle_exit;
  unsigned long long memory;
};

int ar_serve(const struct ar_options *options);
int ar_run(const struct ar_options *options, char **program);
int ar_top(const struct ar_options *options);
int ar_ask(const struct ar_options *options, const char *line);

/* The folder of this user's arbiter. */
void ar_default_folder(char *out, size_t size, bool fake);
/* A file that was built beside this program. */
void ar_beside(char *out, size_t size, const char *name);
/* One line to the arbiter and its answer (malloc'ed), or NULL. */
char *ar_request(const char *folder, const char *line);

#endif
