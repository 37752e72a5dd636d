/* SPDX-License-Identifier: Apache-2.0 */
/* The pages that tenants map. No tenant can change their size, and all of their memory is there
 * from the start: no access of ours or of a neighbour's can fail. */
#ifndef AR_PAGES_H
#define AR_PAGES_H

#include <stdbool.h>
#include <stddef.h>

/* A new page of zeroes and its descriptor, or NULL. Of a private one tenants can make no writable
 * mapping. */
void *ar_pages_make(const char *name, size_t size, bool private, int *fd);

#endif
