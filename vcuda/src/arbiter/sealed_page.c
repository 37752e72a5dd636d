/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "sealed_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* A memfd and not a file: only a memfd can be sealed, and it needs no room on /run. */
void *ar_sealed_page(const char *name, size_t size, bool private, int *fd) {
  int seals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL | (private ? F_SEAL_FUTURE_WRITE : 0);
  *fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (*fd < 0) return NULL;
  void *page = MAP_FAILED;
  if (ftruncate(*fd, (off_t)size) == 0 && fallocate(*fd, 0, 0, (off_t)size) == 0)
    page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
  if (page != MAP_FAILED && fcntl(*fd, F_ADD_SEALS, seals) == 0) return page;
  if (page != MAP_FAILED) munmap(page, size);
  close(*fd);
  *fd = -1;
  return NULL;
}
