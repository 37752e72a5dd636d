/* SPDX-License-Identifier: Apache-2.0 */
/* The table against a plain array, through growth and many removals. */
#include "handle_table.h"
#include "unit.h"

#define KEYS 3000

static uint64_t model[KEYS];
static char odd_ones, even_ones;

static void gone(const struct vc_item *item) {
  CHECK(item->owner == &odd_ones && item->key % 2 && model[item->key] == item->bytes);
  model[item->key] = 0;
}

static unsigned swept;

static struct vc_item put(char *owner) {
  static unsigned state = 5;
  struct vc_item item = {.key = unit_random(&state), .kind = VC_ARRAY, .owner = owner};
  CHECK(vc_table_put(item));
  return item;
}

static void take(struct vc_item item) {
  CHECK(vc_table_take(VC_ARRAY, item.key, &item));
}

static void meanwhile(const struct vc_item *unused) {
  (void)unused;
  swept++;
  take(put(&even_ones));
}

/* Others' entries come and go while one owner's are swept, until the table is laid out again at the same size. */
static void sweep_while_others_come_and_go(void) {
  struct vc_item others[120];
  for (int round = 0; round < 200; round++) {
    for (int i = 0; i < 120; i++) others[i] = put(&even_ones);
    for (int i = 0; i < 60; i++) put(&odd_ones);
    for (int i = 0; i < 120; i++) take(others[i]);
    swept = 0;
    vc_table_sweep(&odd_ones, 0, meanwhile);
    CHECK(swept == 60);
  }
}

int main(void) {
  struct vc_item item;
  unsigned state = 11;
  sweep_while_others_come_and_go();
  for (int i = 0; i < 300000; i++) {
    unsigned key = unit_random(&state) % KEYS;
    if (model[key]) {
      CHECK(vc_table_find(VC_PLAIN, key, &item) && item.bytes == model[key]);
      CHECK(vc_table_take(VC_PLAIN, key, &item) && item.bytes == model[key]);
      CHECK(!vc_table_find(VC_PLAIN, key, &item));
      model[key] = 0;
    } else {
      model[key] = 1 + unit_random(&state);
      CHECK(vc_table_put((struct vc_item){.key = key, .bytes = model[key],
                                          .kind = VC_PLAIN,
                                          .owner = key % 2 ? &odd_ones : &even_ones}));
      CHECK(!vc_table_find(VC_ARRAY, key, &item));
    }
  }
  vc_table_sweep(&odd_ones, 0, gone);
  for (unsigned key = 0; key < KEYS; key++) {
    CHECK(vc_table_find(VC_PLAIN, key, &item) == (model[key] != 0));
    CHECK(!(key % 2 && model[key]));
    CHECK(vc_table_mark(VC_PLAIN, key, 7) == (model[key] ? 0 : UINT32_MAX));
  }
  for (unsigned key = 0; key < KEYS; key++) {
    CHECK(vc_table_rename(VC_PLAIN, key, KEYS + key) == (model[key] != 0));
    CHECK(!vc_table_find(VC_PLAIN, key, &item));
    CHECK(vc_table_find(VC_PLAIN, KEYS + key, &item) == (model[key] != 0));
    CHECK(!model[key] || (item.bytes == model[key] && item.extra == 7));
  }
  vc_table_clear();
  vc_table_sweep(&odd_ones, 0, gone);
  return 0;
}
