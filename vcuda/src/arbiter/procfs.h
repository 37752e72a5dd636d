/* SPDX-License-Identifier: Apache-2.0 */
/* What /proc says of a process. */
#ifndef AR_PROCFS_H
#define AR_PROCFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* When it started, in clock ticks since boot; 0 when it is gone. Tells it from a later process of
 * the same ID. */
uint64_t ar_procfs_start(pid_t pid);
/* Whether the process that started then still lives; of one whose start is unknown (0), any of its ID. */
bool ar_procfs_alive(pid_t pid, uint64_t start);
pid_t ar_procfs_parent(pid_t pid);
/* Its control group: of several hierarchies, the longest line, for a container runtime leaves some
 * of them alone. */
void ar_procfs_cgroup(pid_t pid, char *out, size_t size);
/* Does it map a file of that name? 1, 0, or -1 if that is unknown. */
int ar_procfs_maps(pid_t pid, const char *name);

#endif
