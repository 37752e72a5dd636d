/* SPDX-License-Identifier: Apache-2.0 */
/* The table against a plain array, through growth and many removals. */
#include "table.h"
#include "unit.h"

#define KEYS 3000

static bool odd(const struct vc_item *item, void *unused) {
  (void)unused;
  return item->key % 2;
}

int main(void) {
  static uint64_t model[KEYS];
  struct vc_item item;
  unsigned state = 11;
  for (int i = 0; i < 300000; i++) {
    unsigned key = unit_random(&state) % KEYS;
    if (model[key]) {
      CHECK(vc_table_find(VC_PLAIN, key, &item) && item.bytes == model[key]);
      CHECK(vc_table_take(VC_PLAIN, key, &item) && item.bytes == model[key]);
      CHECK(!vc_table_find(VC_PLAIN, key, &item));
      model[key] = 0;
    } else {
      model[key] = 1 + unit_random(&state);
      CHECK(vc_table_put((struct vc_item){.key = key, .bytes = model[key], .kind = VC_PLAIN}));
      CHECK(!vc_table_find(VC_ARRAY, key, &item));
    }
  }
  while (vc_table_take_if(odd, NULL, &item)) model[item.key] = 0;
  for (unsigned key = 0; key < KEYS; key++) {
    CHECK(vc_table_find(VC_PLAIN, key, &item) == (model[key] != 0));
    CHECK(!(key % 2 && model[key]));
  }
  vc_table_clear();
  CHECK(!vc_table_take_if(odd, NULL, &item));
  return 0;
}
