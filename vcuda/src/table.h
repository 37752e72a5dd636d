/* SPDX-License-Identifier: Apache-2.0 */
/* What this process holds on the device, by the handle or address that names it. */
#ifndef VC_TABLE_H
#define VC_TABLE_H

#include "os.h"

enum vc_kind { VC_PLAIN = 1, VC_ARRAY, VC_HOST, VC_PHYSICAL, VC_MAPPING, VC_EXEC };

struct vc_item {
  uint64_t key;
  uint64_t bytes;
  void *owner; /* a context, or the object that a mapping shows */
  uint32_t kind, extra;
};

/* False when there is no memory for the entry. */
bool vc_table_put(struct vc_item item);
bool vc_table_find(enum vc_kind kind, uint64_t key, struct vc_item *out);
/* Remove and return one entry. */
bool vc_table_take(enum vc_kind kind, uint64_t key, struct vc_item *out);
/* Remove some entry for which the test holds. */
bool vc_table_take_if(bool (*test)(const struct vc_item *, void *), void *argument,
                      struct vc_item *out);
void vc_table_clear(void);

#endif
