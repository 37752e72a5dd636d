/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VC_IMAGE_H
#define VC_IMAGE_H

#include <stdint.h>

/* Bytes of the global variables in a module's image: PTX text or a cubin. What is in a compressed
 * fat binary cannot be seen: 0. */
uint64_t vc_image_globals(const void *image);
/* A file's image, to be freed by the caller, and the same of it; NULL if it cannot be read. */
void *vc_image_read(const char *path, uint64_t *globals);

#endif
