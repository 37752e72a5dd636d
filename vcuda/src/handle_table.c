/* SPDX-License-Identifier: Apache-2.0 */
#include "handle_table.h"

#include <stdlib.h>

#define FIRST_SIZE 256u
#define GONE UINT32_MAX

static struct vc_lock guard;
static struct vc_item *cells;
static uint32_t size, filled; /* filled counts removed cells too */
static uint32_t layout;       /* another one whenever the entries were moved, be it in a table of the same size */

static uint32_t place(enum vc_kind kind, uint64_t key) {
  uint64_t mixed = (key ^ (uint64_t)kind << 56) * 0x9e3779b97f4a7c15ull;
  return (uint32_t)(mixed >> 32) & (size - 1);
}

static void insert(struct vc_item item) {
  uint32_t i = place(item.kind, item.key);
  while (cells[i].kind && cells[i].kind != GONE) i = (i + 1) & (size - 1);
  filled += !cells[i].kind;
  cells[i] = item;
}

static bool grow(void) {
  struct vc_item *old = cells;
  uint32_t old_size = size, live = 0;
  for (uint32_t i = 0; i < old_size; i++) live += old[i].kind && old[i].kind != GONE;
  uint32_t want = old_size ? old_size : FIRST_SIZE;
  if (live * 2 >= want) want *= 2;
  struct vc_item *fresh = calloc(want, sizeof *fresh);
  if (!fresh) return false;
  cells = fresh;
  size = want;
  layout++;
  filled = 0;
  for (uint32_t i = 0; i < old_size; i++)
    if (old[i].kind && old[i].kind != GONE) insert(old[i]);
  free(old);
  return true;
}

static struct vc_item *find(enum vc_kind kind, uint64_t key) {
  if (!size) return NULL;
  for (uint32_t i = place(kind, key); cells[i].kind; i = (i + 1) & (size - 1))
    if (cells[i].kind == (uint32_t)kind && cells[i].key == key) return &cells[i];
  return NULL;
}

static bool has_room(void) {
  return (filled + 1) * 4 < size * 3 || grow();
}

bool vc_table_put(struct vc_item item) {
  vc_lock(&guard);
  bool ok = has_room();
  if (ok) insert(item);
  vc_unlock(&guard);
  return ok;
}

bool vc_table_find(enum vc_kind kind, uint64_t key, struct vc_item *out) {
  vc_lock(&guard);
  struct vc_item *cell = find(kind, key);
  if (cell) *out = *cell;
  vc_unlock(&guard);
  return cell;
}

bool vc_table_take(enum vc_kind kind, uint64_t key, struct vc_item *out) {
  vc_lock(&guard);
  struct vc_item *cell = find(kind, key);
  if (cell) {
    *out = *cell;
    cell->kind = GONE;
  }
  vc_unlock(&guard);
  return cell;
}

bool vc_table_rename(enum vc_kind kind, uint64_t from, uint64_t to) {
  vc_lock(&guard);
  struct vc_item *cell = has_room() ? find(kind, from) : NULL;
  if (cell) {
    struct vc_item item = *cell;
    cell->kind = GONE;
    item.key = to;
    insert(item);
  }
  vc_unlock(&guard);
  return cell;
}

bool vc_table_set(struct vc_item item) {
  vc_lock(&guard);
  struct vc_item *cell = find(item.kind, item.key);
  bool ok = cell || has_room();
  if (cell)
    *cell = item;
  else if (ok)
    insert(item);
  vc_unlock(&guard);
  return ok;
}

uint32_t vc_table_mark(enum vc_kind kind, uint64_t key, uint32_t extra) {
  vc_lock(&guard);
  struct vc_item *cell = find(kind, key);
  uint32_t before = cell ? cell->extra : UINT32_MAX;
  if (cell) cell->extra = extra;
  vc_unlock(&guard);
  return before;
}

static bool take_owned(uint32_t *at, uint32_t *known, const void *owner, uint32_t kind, struct vc_item *out) {
  bool found = false;
  vc_lock(&guard);
  if (*known != layout) *at = 0;
  *known = layout;
  for (; *at < size && !found; ++*at) {
    struct vc_item *cell = &cells[*at];
    if (!cell->kind || cell->kind == GONE || cell->owner != owner || (kind && cell->kind != kind)) continue;
    *out = *cell;
    cell->kind = GONE;
    found = true;
  }
  vc_unlock(&guard);
  return found;
}

/* The lock is free while an entry is handed over. */
void vc_table_sweep(const void *owner, uint32_t kind, void (*gone)(const struct vc_item *)) {
  struct vc_item item;
  uint32_t known = 0;
  for (uint32_t at = 0; take_owned(&at, &known, owner, kind, &item);) gone(&item);
}

struct vc_item *vc_table_list(enum vc_kind kind, uint32_t *count) {
  vc_lock(&guard);
  uint32_t found = 0;
  for (uint32_t i = 0; i < size; i++) found += cells[i].kind == (uint32_t)kind;
  struct vc_item *list = found ? malloc(found * sizeof *list) : NULL;
  *count = found;
  for (uint32_t i = 0, at = 0; list && i < size; i++)
    if (cells[i].kind == (uint32_t)kind) list[at++] = cells[i];
  vc_unlock(&guard);
  return list;
}

void vc_table_hand_over(const void *from, void *to) {
  vc_lock(&guard);
  for (uint32_t i = 0; i < size; i++)
    if (cells[i].kind && cells[i].kind != GONE && cells[i].owner == from) cells[i].owner = to;
  vc_unlock(&guard);
}

uint64_t vc_table_place(void) {
  static _Atomic uint64_t count;
  return 1ull << 63 | atomic_fetch_add(&count, 1);
}

void vc_table_clear(void) {
  atomic_store(&guard.word, 0);
  for (uint32_t i = 0; i < size; i++) cells[i].kind = 0;
  filled = 0;
}
