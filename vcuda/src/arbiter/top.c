/* SPDX-License-Identifier: Apache-2.0 */
/* `arbiter top` and `arbiter ask`: what the control socket says, for people. */
#define _GNU_SOURCE
#include "cli.h"
#include "json.h"
#include "saved_seats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEATS 256

struct row {
  char name[AR_NAME];
  int64_t busy, wall;
};

static struct row before[SEATS];
static int before_count;

/* The answer is our own arbiter's: its seats and findings are flat objects, one after the other. If one has more than
 * fits, such as a long control group, the fields before are read. */
static const char *next_object(const char *at, struct ar_object *out) {
  const char *why, *open = strchr(at, '{'), *close = open ? strchr(open, '}') : NULL;
  const char *end = strchr(at, ']');
  if (!close || (end && end < open)) return NULL;
  ar_json_parse(open, (size_t)(close - open) + 1, out, &why);
  return close + 1;
}

static int64_t number(const struct ar_object *o, const char *name) {
  const struct ar_field *f = ar_json_get(o, name);
  return f ? f->number : 0;
}

static const char *text(const struct ar_object *o, const char *name) {
  const struct ar_field *f = ar_json_get(o, name);
  return f ? f->text : "";
}

static double share(const char *name, int64_t busy, int64_t wall) {
  for (int i = 0; i < before_count; i++)
    if (!strcmp(before[i].name, name) && wall > before[i].wall)
      return 100.0 * (double)(busy - before[i].busy) / (double)(wall - before[i].wall);
  return wall ? 100.0 * (double)busy / (double)wall : 0;
}

static void show(const char *answer) {
  static struct row now[SEATS];
  struct ar_object o;
  int count = 0;
  const char *at = strstr(answer, "\"seats\":[");
  printf("%-24s %3s %-10s %9s %7s %10s %10s %10s %10s\n", "SEAT", "GPU", "CLASS", "CORE/LIM",
         "USE%", "MEM MiB", "PEAK MiB", "CAP MiB", "LAUNCHES");
  for (at = at ? at + 8 : NULL; at && (at = next_object(at, &o));) {
    int64_t busy = number(&o, "busy_ns"), wall = number(&o, "wall_ns");
    printf("%-24s %3d %-10s %4d/%-4d %7.1f %10lld %10lld %10lld %10lld\n", text(&o, "seat"),
           (int)number(&o, "gpu"), text(&o, "class"), (int)number(&o, "core"),
           (int)number(&o, "limit"), share(text(&o, "seat"), busy, wall),
           (long long)number(&o, "memory") >> 20, (long long)number(&o, "memory_peak") >> 20,
           (long long)number(&o, "memory_limit") >> 20, (long long)number(&o, "launches"));
    if (count < SEATS) {
      snprintf(now[count].name, sizeof now[count].name, "%.63s", text(&o, "seat"));
      now[count].busy = busy;
      now[count++].wall = wall;
    }
  }
  memcpy(before, now, sizeof now);
  before_count = count;
  at = strstr(answer, "\"audit\":[");
  for (at = at ? at + 8 : NULL; at && (at = next_object(at, &o));)
    printf("process %d uses GPU %d %s, seat %s\n", (int)number(&o, "pid"), (int)number(&o, "gpu"), text(&o, "how"),
           *text(&o, "seat") ? text(&o, "seat") : "unknown");
}

int ar_top(const struct ar_options *o) {
  const char *folder = ar_folder_of(o);
  do {
    char *answer = ar_request(folder, "{\"op\":\"read\"}");
    if (!answer) {
      fprintf(stderr, "arbiter top: no arbiter serves %s\n", folder);
      return 1;
    }
    if (!o->once && isatty(1)) printf("\033[H\033[2J");
    show(answer);
    fflush(stdout);
    free(answer);
    if (!o->once) sleep(1);
  } while (!o->once);
  return 0;
}

int ar_ask(const struct ar_options *o, const char *line) {
  const char *folder = ar_folder_of(o);
  char *answer = ar_request(folder, line);
  if (!answer) {
    fprintf(stderr, "arbiter ask: no arbiter serves %s\n", folder);
    return 1;
  }
  fputs(answer, stdout);
  bool ok = !strncmp(answer, "{\"ok\":true", 10);
  free(answer);
  return ok ? 0 : 1;
}
