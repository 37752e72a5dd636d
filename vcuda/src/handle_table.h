/* SPDX-License-Identifier: Apache-2.0 */
/* What this process holds on the device, by its handle or address. */
#ifndef VC_HANDLE_TABLE_H
#define VC_HANDLE_TABLE_H

#include "clock_and_lock.h"

enum vc_kind {
  VC_PLAIN = 1, VC_ARRAY, VC_HOST, VC_PHYSICAL, VC_EXEC, VC_EXEC_PART, VC_CONTEXT, VC_MODULE, VC_LIBRARY,
  VC_KERNEL_DEEP, VC_ATTACHED, VC_SMALL, VC_LIMIT, VC_FREED
};

#define VC_EXPORTED 1u /* in `extra`: other processes may hold it as well */

struct vc_item {
  uint64_t key;
  uint64_t bytes;
  void *owner; /* a context, or what a handle refers to */
  uint32_t kind, extra;
};

/* Add an entry; false if there is no memory for it. */
bool vc_table_put(struct vc_item item);
/* Copy one entry; false if there is none. */
bool vc_table_find(enum vc_kind kind, uint64_t key, struct vc_item *out);
/* Remove and return one entry; false if there is none. */
bool vc_table_take(enum vc_kind kind, uint64_t key, struct vc_item *out);
/* Give an entry another key; a thread that lists its kind meanwhile sees it exactly once. */
bool vc_table_rename(enum vc_kind kind, uint64_t from, uint64_t to);
/* Put an entry in the place of the one with its kind and key, if there is one. */
bool vc_table_set(struct vc_item item);
/* Set an entry's `extra`; returns what it was, or UINT32_MAX if there is no entry. */
uint32_t vc_table_mark(enum vc_kind kind, uint64_t key, uint32_t extra);
/* Return a copy of all entries of a kind, for the caller to free; NULL if there are none (a count of 0) or no memory. */
struct vc_item *vc_table_list(enum vc_kind kind, uint32_t *count);
/* Give all entries of one owner to another. */
void vc_table_hand_over(const void *from, void *to);
/* Remove all entries of an owner, of one kind or of any (0), and pass each to `gone`. */
void vc_table_sweep(const void *owner, uint32_t kind, void (*gone)(const struct vc_item *));
/* Return a key that no handle or address has, for an entry that is made before there is one; never the same twice. */
uint64_t vc_table_place(void);
/* In a forked child: what the parent holds is not the child's. */
void vc_table_clear(void);

#endif
