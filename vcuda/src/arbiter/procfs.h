/* SPDX-License-Identifier: Apache-2.0 */
/* What /proc says of a process. */
#ifndef AR_PROCFS_H
#define AR_PROCFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Return when a process started, in clock ticks since boot, which tells it from a later process with the same ID; 0 if
 * it is gone. */
uint64_t ar_procfs_start(pid_t pid);
/* Whether the process that started then is alive; if its start is unknown (0), any process with its ID counts. */
bool ar_procfs_alive(pid_t pid, uint64_t start);
/* Whether there is no such process, or only what its parent has not noticed yet. */
bool ar_procfs_ended(pid_t pid);
/* Return a process's parent; 0 if the process is gone. */
pid_t ar_procfs_parent(pid_t pid);
/* Write a process's control group: of several hierarchies the longest line, because a container runtime leaves some of
 * them alone. */
void ar_procfs_cgroup(pid_t pid, char *out, size_t size);
/* Whether a process maps a file of that name: 1, 0, or -1 if that is unknown. */
int ar_procfs_maps(pid_t pid, const char *name);

#endif
