/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UNIT_H
#define UNIT_H

#include <stdio.h>
#include <stdlib.h>

/* A failed check ends the program: the next one would only add noise. */
#define CHECK(truth)                                                                               \
  do {                                                                                             \
    if (!(truth)) {                                                                                \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #truth);                                  \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

/* A small generator of our own: the same run on every machine. */
static inline unsigned unit_random(unsigned *state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

#endif
