/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the fake NVML share. */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H

#include "fake.h"

#define NVML_API(name, arguments)                                                                  \
  __attribute__((visibility("default"))) int name arguments;                                       \
  int name arguments
#define NVML_RESULT(name, arguments, result)                                                       \
  NVML_API(name, arguments) {                                                                      \
    return result;                                                                                 \
  }

enum {
  NVML_OK = 0,
  NVML_INVALID = 2,
  NVML_UNSUPPORTED = 3,
  NVML_NOT_FOUND = 6,
  NVML_SIZE = 7,
  NVML_TIMEOUT = 10,
  NVML_LOST = 15,
};

struct pci {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char text[32];
};

static inline int index_of(void *device) {
  return (int)((struct fk_gpu *)device - fk_world()->gpu);
}

#endif
