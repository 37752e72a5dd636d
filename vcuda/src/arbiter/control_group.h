/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a process's control group is the one that a seat was set for, or lies below it. */
#ifndef AR_CONTROL_GROUP_H
#define AR_CONTROL_GROUP_H

/* Return where in a line of /proc/PID/cgroup the given name or path first is; NULL if it is not in it. A name is a whole part
 * of the path: one that only begins or ends like it is another. systemd's unit of that name is it too, and a slice with
 * its parents' names before it. Dashes count as underscores, because a pod's UID is written with either. */
const char *ar_control_group_find(const char *line, const char *name);

#endif
