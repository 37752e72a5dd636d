/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VC_MODULE_IMAGE_H
#define VC_MODULE_IMAGE_H

#include <stdint.h>

/* Return the bytes of the global variables in a module's image: PTX text, a cubin or a fat binary. Those in a
 * compressed part of a fat binary cannot be seen, and count as 0. */
uint64_t vc_image_globals(const void *image);
/* Read an image from a file, for the caller to free, and the bytes of its variables; NULL if it cannot be read. */
void *vc_image_read(const char *path, uint64_t *globals);

#endif
