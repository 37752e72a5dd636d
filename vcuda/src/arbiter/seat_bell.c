/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that can wake a futex can also move its waiters to another one, even without the right to
 * write. So the GPU's thread never sleeps on a word that tenants can reach: each seat has its own
 * word, and a thread that sleeps on it. A seat that moves this thread away only silences its own
 * bell, and one that rings without end is heard less often.
 */
#define _GNU_SOURCE
#include "seat_bell.h"
#include "sealed_page.h"

#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define LOOK_NS (1 * VC_S)
#define CROWD 100 /* wake-ups within CROWD_NS, more than an honest seat needs */
#define CROWD_NS (10 * VC_MS)
#define PAUSE_NS (1 * VC_MS)

struct ar_bell {
  struct ar_gpu *gpu;
  struct vc_bell *page; /* NULL in virtual time */
  int fd;
  _Atomic bool stop;
};

static void discard(struct ar_bell *b) {
  if (b->page) munmap(b->page, sizeof *b->page);
  free(b);
}

static void *listen_to(void *argument) {
  struct ar_bell *b = argument;
  uint32_t heard = atomic_load(&b->page->word);
  uint64_t since = 0;
  int count = 0;
  prctl(PR_SET_TIMERSLACK, 1000);
  for (;;) {
    uint32_t word = atomic_load(&b->page->word);
    uint64_t now = vc_machine_now();
    if (atomic_load(&b->stop)) break;
    if (now - since > CROWD_NS) {
      since = now;
      count = 0;
    }
    if (++count > CROWD) vc_machine_sleep(PAUSE_NS);
    if (word != heard) {
      heard = word;
      ar_gpu_ring(b->gpu);
    } else {
      vc_wait(&b->page->word, word, 0, now + LOOK_NS);
    }
  }
  discard(b);
  return NULL;
}

static bool start(struct ar_bell *b) {
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, 64 * 1024 + (size_t)PTHREAD_STACK_MIN);
  bool ok = pthread_create(&thread, &attributes, listen_to, b) == 0;
  pthread_attr_destroy(&attributes);
  return ok;
}

/* In virtual time nothing sleeps on the word itself, and all share the GPU's bell. */
struct ar_bell *ar_bell_open(struct ar_gpu *gpu) {
  struct ar_bell *b = calloc(1, sizeof *b);
  if (!b) return NULL;
  *b = (struct ar_bell){.gpu = gpu, .fd = -1};
  if (vc_clock) return b;
  b->page = ar_sealed_page("slicekeeper-bell", sizeof *b->page, false, &b->fd);
  if (b->page && start(b)) return b;
  if (b->page) close(b->fd);
  discard(b);
  return NULL;
}

/* The thread ends, and frees the rest, at its next look. Nothing waits for it, because a tenant may have requeued it
 * to a futex that nothing wakes. */
void ar_bell_close(struct ar_bell *b) {
  if (!b->page) return discard(b);
  close(b->fd);
  atomic_store(&b->stop, true);
}

int ar_bell_descriptor(const struct ar_bell *b) {
  return b->page ? b->fd : b->gpu->bell_fd;
}
