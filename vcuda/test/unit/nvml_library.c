/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's answers: how busy a GPU was, by samples that bear the machine's time, while that is set
 * forward and back; and GPUs of which one is lost. */
#include "../../src/arbiter/nvml_library.c"
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

enum { LOST = 1, GPUS = 3, GPU_IS_LOST = 15 };

static int handle(unsigned index, void **device) {
  static int devices[GPUS];
  *device = &devices[index];
  return index == LOST ? GPU_IS_LOST : NV_OK;
}

static int text(void *device, char *out, unsigned size) {
  CHECK(device);
  snprintf(out, size, "GPU-00112233-4455-6677-8899-aabbccddeeff");
  return NV_OK;
}

static void lost(void) {
  nv.handle = handle;
  nv.uuid = nv.name = text;
  list_gpus(GPUS);
  CHECK(ar_gpu_count == GPUS - 1);
  CHECK(ar_gpus[0].index == 0 && ar_gpus[1].index == 2);
  CHECK(ar_gpus[1].uuid[15] == 0xff);
}

int main(void) {
  uint64_t since = 0;
  CHECK(ar_nvml_busy(0, &since) == -1); /* a library without samples */
  nv.samples = samples;
  CHECK(ar_nvml_busy(0, &since) == -1 && since == 0);
  sample(1000, 50);
  sample(1001, 70);
  CHECK(ar_nvml_busy(0, &since) == 60 && since == 1001);
  CHECK(ar_nvml_busy(0, &since) == -1 && since == 1001);
  sample(5000, 10);
  CHECK(ar_nvml_busy(0, &since) == 10 && since == 5000);
  for (unsigned i = 0; i < KEPT; i++) sample(200 + i, 90); /* set back */
  CHECK(ar_nvml_busy(0, &since) == -1 && since == 203);
  sample(204, 30);
  CHECK(ar_nvml_busy(0, &since) == 30 && since == 204);
  lost();
  return 0;
}
