/* SPDX-License-Identifier: Apache-2.0 */
/* How busy a GPU was, by samples that bear the machine's time, while that is set forward and back. */
#include "../../src/arbiter/nv.c"
#include "unit.h"

struct ar_gpu ar_gpus[AR_GPUS];
int ar_gpu_count;

enum { KEPT = 4, NOT_FOUND = 6 };
static struct sample ring[KEPT];
static unsigned made;

static int samples(void *device, int what, unsigned long long since, int *kind, unsigned *count,
                   struct sample *out) {
  unsigned room = *count, found = 0;
  CHECK(!device && what == NV_UTILIZATION);
  *kind = NV_UNSIGNED;
  *count = KEPT;
  if (!out) return NV_OK;
  for (unsigned i = 0; i < made && i < KEPT && found < room; i++)
    if (ring[i].when > since) out[found++] = ring[i];
  *count = found;
  return found ? NV_OK : NOT_FOUND;
}

static void sample(unsigned long long when, unsigned percent) {
  ring[made % KEPT].when = when;
  ring[made++ % KEPT].value.number = percent;
}

int main(void) {
  uint64_t since = 0;
  CHECK(ar_nv_busy(0, &since) == -1); /* a library without samples */
  nv.samples = samples;
  CHECK(ar_nv_busy(0, &since) == -1 && since == 0);
  sample(1000, 50);
  sample(1001, 70);
  CHECK(ar_nv_busy(0, &since) == 60 && since == 1001);
  CHECK(ar_nv_busy(0, &since) == -1 && since == 1001);
  sample(5000, 10);
  CHECK(ar_nv_busy(0, &since) == 10 && since == 5000);
  for (unsigned i = 0; i < KEPT; i++) sample(200 + i, 90); /* set back */
  CHECK(ar_nv_busy(0, &since) == -1 && since == 203);
  sample(204, 30);
  CHECK(ar_nv_busy(0, &since) == 30 && since == 204);
  return 0;
}
