/* SPDX-License-Identifier: Apache-2.0 */
/* The part of NVML that tells how GPUs are: Xid events, memory errors, remapped rows, links. A test
 * makes a GPU ill by the functions at the end. */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  NVML_EVENT_XID = 8,
  NVML_UNCORRECTED = 1,
  NVML_TOPOLOGY_INTERNAL = 0,
  NVML_TOPOLOGY_SINGLE = 10,
  NVML_TOPOLOGY_SYSTEM = 50,
};

#define LOOK_NS 5000000

/* What a process has seen of each GPU's events since it made the set. */
struct set {
  uint32_t seen[FK_GPUS];
  uint64_t wanted[FK_GPUS];
};

struct event {
  void *device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

int nvmlDeviceGetPciInfo_v3(void *device, struct pci *out);

static struct fk_health *health_of(void *device) {
  int index = index_of(device);
  return &fk_world()->health[index < FK_GPUS ? index : (int)fk_slice_of(index)->gpu];
}

/* SLICEKEEPER_FAKE_NVML=plain: a GPU that tells none of this, as consumers' GPUs do. */
static bool plain(void) {
  const char *chosen = fk_setting("NVML");
  return chosen && !strcmp(chosen, "plain");
}

static int told(void *device) {
  return plain() ? NVML_UNSUPPORTED : health_of(device)->lost ? NVML_LOST : NVML_OK;
}

NVML_API(nvmlEventSetCreate, (void **set)) {
  struct set *made = calloc(1, sizeof *made);
  for (int i = 0; made && i < FK_GPUS; i++) made->seen[i] = fk_world()->health[i].xids;
  *set = made;
  return made ? NVML_OK : NVML_INVALID;
}
NVML_API(nvmlEventSetFree, (void *set)) {
  free(set);
  return NVML_OK;
}
NVML_API(nvmlDeviceGetSupportedEventTypes, (void *device, unsigned long long *types)) {
  *types = NVML_EVENT_XID;
  return told(device);
}
NVML_API(nvmlDeviceRegisterEvents, (void *device, unsigned long long types, void *set)) {
  ((struct set *)set)->wanted[index_of(device)] |= types;
  return told(device);
}

static bool take(struct set *set, struct event *out) {
  struct fk_world *w = fk_world();
  for (unsigned i = 0; i < w->gpus; i++) {
    if (!(set->wanted[i] & NVML_EVENT_XID) || set->seen[i] == w->health[i].xids) continue;
    set->seen[i] = w->health[i].xids;
    *out = (struct event){&w->gpu[i], NVML_EVENT_XID, w->health[i].xid, ~0u, ~0u};
    return true;
  }
  return false;
}

NVML_API(nvmlEventSetWait_v2, (void *set, struct event *out, unsigned milliseconds)) {
  const struct timespec pause = {0, LOOK_NS};
  for (uint64_t waited = 0; !take(set, out); waited += LOOK_NS) {
    if (waited >= milliseconds * 1000000ull) return NVML_TIMEOUT;
    nanosleep(&pause, NULL);
  }
  return NVML_OK;
}

NVML_API(nvmlDeviceGetTotalEccErrors,
         (void *device, int type, int counter, unsigned long long *count)) {
  (void)counter;
  *count = type == NVML_UNCORRECTED ? health_of(device)->ecc : 0;
  return told(device);
}
/* No error is remapped on a GPU that has errors to count: it is one of those before remapping. */
NVML_API(nvmlDeviceGetRemappedRows,
         (void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
          unsigned *failed)) {
  const struct fk_health *h = health_of(device);
  *corrected = *uncorrected = 0;
  *pending = h->remap_pending;
  *failed = h->remap_failed;
  return h->ecc ? NVML_UNSUPPORTED : told(device);
}

/* SLICEKEEPER_FAKE_NVLINKS: how many links each GPU has to each other one. */
static struct fk_gpu *linked(void *device, unsigned link) {
  struct fk_world *w = fk_world();
  unsigned each = (unsigned)fk_bytes(fk_setting("NVLINKS"), 0);
  if (!each || link >= each * (w->gpus - 1)) return NULL;
  unsigned other = link / each;
  return &w->gpu[other < (unsigned)index_of(device) ? other : other + 1];
}
NVML_API(nvmlDeviceGetNvLinkState, (void *device, unsigned link, unsigned *active)) {
  *active = 1;
  return linked(device, link) ? told(device) : NVML_INVALID;
}
NVML_API(nvmlDeviceGetNvLinkRemotePciInfo_v2, (void *device, unsigned link, struct pci *out)) {
  struct fk_gpu *other = linked(device, link);
  return other ? nvmlDeviceGetPciInfo_v3(other, out) : NVML_INVALID;
}

/* SLICEKEEPER_FAKE_SWITCHED: how many GPUs are below each PCIe switch; the rest of the way is the host's. */
NVML_API(nvmlDeviceGetTopologyCommonAncestor, (void *one, void *other, int *level)) {
  int each = (int)fk_bytes(fk_setting("SWITCHED"), 0);
  if (!each) return NVML_UNSUPPORTED;
  bool near = index_of(one) / each == index_of(other) / each;
  *level = one == other ? NVML_TOPOLOGY_INTERNAL : near ? NVML_TOPOLOGY_SINGLE : NVML_TOPOLOGY_SYSTEM;
  return told(one);
}

__attribute__((visibility("default"))) void skfXid(int gpu, unsigned xid);
void skfXid(int gpu, unsigned xid) {
  struct fk_health *h = &fk_world()->health[gpu];
  h->xid = xid;
  h->xids++;
}

__attribute__((visibility("default"))) void skfHealth(int gpu, const struct fk_health *now);
void skfHealth(int gpu, const struct fk_health *now) {
  struct fk_health *h = &fk_world()->health[gpu];
  uint32_t xid = h->xid, xids = h->xids;
  *h = *now;
  h->xid = xid;
  h->xids = xids;
}
