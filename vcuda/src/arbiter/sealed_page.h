/* SPDX-License-Identifier: Apache-2.0 */
/* The pages that tenants map. No tenant can change their size, and all of their memory is allocated at the start, so
 * that no access of ours or of a neighbour's can fail. */
#ifndef AR_SEALED_PAGE_H
#define AR_SEALED_PAGE_H

#include <stdbool.h>
#include <stddef.h>

/* Make a page of zeroes and its descriptor; NULL without memory or descriptors. Tenants cannot map a private one
 * writable. */
void *ar_sealed_page(const char *name, size_t size, bool private, int *fd);

#endif
