/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "procfs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A process may have any number of mappings; what lies beyond this is not read. */
#define MAPS_MOST (2u << 20)

static size_t read_file(const char *path, char *out, size_t size) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd >= 0 ? read(fd, out, size - 1) : -1;
  if (fd >= 0) close(fd);
  out[n > 0 ? n : 0] = 0;
  return n > 0 ? (size_t)n : 0;
}

/* The fields of /proc/PID/stat from the third on: a program's name may hold anything. */
static const char *stat_of(pid_t pid, char *text, size_t size) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  if (!read_file(path, text, size)) return NULL;
  const char *after = strrchr(text, ')');
  return after && strlen(after) > 4 ? after + 2 : NULL;
}

uint64_t ar_procfs_start(pid_t pid) {
  char text[1024];
  const char *at = stat_of(pid, text, sizeof text);
  if (!at || *at == 'Z' || *at == 'X') return 0;
  for (int field = 3; at && field < 22; field++) {
    at = strchr(at, ' ');
    if (at) at++;
  }
  return at ? strtoull(at, NULL, 10) : 0;
}

bool ar_procfs_ended(pid_t pid) {
  char text[1024];
  if (kill(pid, 0) < 0 && errno == ESRCH) return true;
  const char *at = stat_of(pid, text, sizeof text);
  return at && (*at == 'Z' || *at == 'X');
}

pid_t ar_procfs_parent(pid_t pid) {
  char text[1024];
  const char *at = stat_of(pid, text, sizeof text);
  return at ? (pid_t)strtol(at + 2, NULL, 10) : 0;
}

void ar_procfs_cgroup(pid_t pid, char *out, size_t size) {
  char path[64], all[8192];
  size_t longest = 0;
  snprintf(path, sizeof path, "/proc/%d/cgroup", (int)pid);
  read_file(path, all, sizeof all);
  *out = 0;
  for (char *rest = all, *line; (line = strsep(&rest, "\n"));)
    if (strlen(line) > longest) {
      longest = strlen(line);
      snprintf(out, size, "%s", line);
    }
}

int ar_procfs_maps(pid_t pid, const char *name) {
  char path[64], line[1024];
  size_t seen = 0;
  int found = 0;
  snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
  FILE *maps = fopen(path, "re");
  if (!maps) return -1;
  while (!found && fgets(line, sizeof line, maps)) {
    found = strstr(line, name) != NULL;
    seen += strlen(line);
    if (seen > MAPS_MOST) found = -1;
  }
  if (!seen) found = -1; /* not readable for us, or a process that is ending */
  fclose(maps);
  return found;
}

bool ar_procfs_alive(pid_t pid, uint64_t start) {
  if (start) return ar_procfs_start(pid) == start;
  return kill(pid, 0) == 0 || errno == EPERM;
}
