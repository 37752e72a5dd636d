/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A container may have a time namespace, which shifts the monotonic clock. What the arbiter and the processes of a seat
 * tell each other is by the machine's clock, which only the kernel's file about the shift leads back to: no other
 * clock is both free of it and never set.
 */
#ifndef VC_TIME_NAMESPACE_H
#define VC_TIME_NAMESPACE_H

#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

/* Read a decimal number, and move on behind it. */
static inline int64_t vc_decimal(const char **at) {
  while (**at == ' ') ++*at;
  int64_t sign = **at == '-' ? -1 : 1, value = 0;
  if (sign < 0) ++*at;
  for (; **at >= '0' && **at <= '9'; ++*at) value = value * 10 + (**at - '0');
  return sign * value;
}

/* The file is about the children's namespace: a process that has made one for them is not in it itself. */
static inline int vc_time_namespace_own(void) {
  char own[64] = "", children[64] = "";
  return readlink("/proc/self/ns/time", own, sizeof own - 1) > 0 &&
         readlink("/proc/self/ns/time_for_children", children, sizeof children - 1) > 0 && !strcmp(own, children);
}

/* Return by how many nanoseconds this process's monotonic clock is ahead of the machine's; 0 if that is unknown. */
static inline int64_t vc_time_namespace_ahead(void) {
  char text[256];
  int fd = vc_time_namespace_own() ? open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC) : -1;
  ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
  if (fd >= 0) close(fd);
  text[n > 0 ? n : 0] = 0;
  const char *at = strstr(text, "monotonic");
  if (!at) return 0;
  at += strlen("monotonic");
  int64_t seconds = vc_decimal(&at);
  return seconds * 1000000000 + vc_decimal(&at);
}

#endif
