/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that are called by the name that the command line gives. */
#ifndef BY_NAME_H
#define BY_NAME_H
#include <stdio.h>
#include <string.h>

struct by_name {
  const char *name;
  void (*go)(void);
};

/* BY_NAME(f) {…} defines f and puts it into the table that the linker makes of the section "by_name". */
#define BY_NAME(f)                                                                \
  static void f(void);                                                            \
  __attribute__((section("by_name"), used, aligned(sizeof(void *))))              \
  static const struct by_name by_name_##f = {#f, f};                              \
  static void f(void)
extern const struct by_name __start_by_name[], __stop_by_name[];

static inline void list_names(void) {
  for (const struct by_name *one = __start_by_name; one < __stop_by_name; one++) puts(one->name);
}

static inline const struct by_name *find_by_name(const char *name) {
  for (const struct by_name *one = __start_by_name; one < __stop_by_name; one++)
    if (!strcmp(one->name, name)) return one;
  return NULL;
}

#endif
