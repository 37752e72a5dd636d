/* SPDX-License-Identifier: Apache-2.0 */
/* What this process holds on the device, by the handle or address that names it. */
#ifndef VC_TABLE_H
#define VC_TABLE_H

#include "os.h"

enum vc_kind { VC_PLAIN = 1, VC_ARRAY, VC_HOST, VC_PHYSICAL, VC_EXEC, VC_CONTEXT, VC_MODULE, VC_KERNEL_DEEP, VC_ATTACHED,
               VC_SMALL, VC_LIMIT, VC_LIBRARY, VC_FREED, VC_EXEC_PART };

#define VC_EXPORTED 1u /* in `extra`: other processes may hold it as well */

struct vc_item {
  uint64_t key;
  uint64_t bytes;
  void *owner; /* a context, or what a handle refers to */
  uint32_t kind, extra;
};

/* False when there is no memory for the entry. */
bool vc_table_put(struct vc_item item);
bool vc_table_find(enum vc_kind kind, uint64_t key, struct vc_item *out);
/* Remove and return one entry. */
bool vc_table_take(enum vc_kind kind, uint64_t key, struct vc_item *out);
/* Give an entry another key; whoever lists its kind meanwhile sees it once. */
bool vc_table_rename(enum vc_kind kind, uint64_t from, uint64_t to);
/* Change what an entry holds in `extra`; returns what it was, or UINT32_MAX without an entry. */
uint32_t vc_table_mark(enum vc_kind kind, uint64_t key, uint32_t extra);
/* A copy of all entries of a kind, to be freed by the caller; NULL when there is none (a count of 0), or no memory. */
struct vc_item *vc_table_list(enum vc_kind kind, uint32_t *count);
/* Entries of one owner are another's from now on. */
void vc_table_hand_over(const void *from, void *to);
/* Remove all entries of an owner, of one kind or (0) of any, and hand them over, in one pass. */
void vc_table_sweep(const void *owner, uint32_t kind, void (*gone)(const struct vc_item *));
/* A key that no handle or address is, for an entry that is made before there is one; never the same twice. */
uint64_t vc_table_place(void);
void vc_table_clear(void);

#endif
