/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA driver on the CPU. All processes share one world (a mapped file): its GPUs, their memory
 * and queues, and a clock that is either the machine's or a virtual one.
 *
 * The GPU is a time line, not a worker: whoever asks moves it up to the present. Nothing runs, so
 * kernels cost no CPU, and in virtual time results do not depend on the machine's load.
 */
#ifndef FAKE_H
#define FAKE_H

#include "abi.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FK_GPUS 8
#define FK_SLICES 14 /* MIG devices of all GPUs together */
#define FK_DEVICES (FK_GPUS + FK_SLICES)
#define FK_CTXS 192 /* contexts, and for each process what it holds on a device outside of contexts */
#define FK_SHARES 256
#define FK_STREAMS 8192
#define FK_OPS 65536u
#define FK_MARKS 65536u
#define FK_QUEUED 1024u /* operations that a stream holds; one more waits, as on a GPU */
#define FK_ACTORS 1024
#define FK_NEVER UINT64_MAX
#define FK_SLICE_NS 2000000ull
#define FK_SAMPLE_NS 166666667ull
#define FK_SAMPLES 120u
#define FK_WHOLE 1000000u /* the width of a kernel that fills the GPU */

enum fk_kind {
  FK_KERNEL,
  FK_MARK,  /* complete as soon as it is first in its stream */
  FK_AFTER, /* waits for an operation of another stream */
  FK_HOST,  /* waits until its process has done something */
};

/* Which operation of which stream; a stream that is gone (another `life`) has done all. */
struct fk_place {
  uint32_t stream, life;
  uint64_t seq;
};

struct fk_op {
  uint64_t left;   /* picoseconds of work at full speed */
  uint64_t serial; /* its place among all operations of its context */
  struct fk_place after;
  uint32_t kind, width;
  uint32_t next, mark;
  uint32_t began; /* a kernel that has run for a while */
  uint32_t ready; /* a host operation is first in its stream: its process has been woken */
};

struct fk_stream {
  uint32_t used, life, queue;
  uint32_t legacy, blocking, closing; /* blocking: ordered with the legacy default stream */
  int32_t priority;                   /* lower comes first */
  uint32_t head, tail;                /* operations; 0 for none */
  uint64_t submitted, done;
  uint32_t next; /* in its context's list */
};

/* When an event was reached, for cuEventElapsedTime. */
struct fk_mark {
  uint64_t seq, when;
  uint32_t used, next;
};

/* A context: its streams run side by side, other contexts in turn with it. Or, without streams, what a process holds
 * on a device that is no context's: virtual memory and pools. */
struct fk_queue {
  uint32_t used;
  uint32_t bare; /* no context's */
  int32_t pid;
  uint32_t streams, legacy; /* first in the list; the legacy default stream */
  uint32_t pending;         /* operations not complete */
  uint64_t serial;
  uint64_t busy; /* nanoseconds with a kernel running */
  uint64_t slice_left;
  uint64_t mem, small;             /* bytes on the device; small requests share granules */
  uint64_t sample_work, sample_at; /* utilisation window for NVML */
  uint32_t sm_util;
};

/* Exported memory: it lives as long as anything holds it, an open descriptor too, and is counted to one of the queues
 * that do; if only a descriptor is left, to none. */
struct fk_share {
  uint32_t used, life;
  int32_t counted;        /* to which queue; -1: to none */
  uint32_t held[FK_CTXS]; /* how many handles of each */
  uint64_t bytes;
};

struct fk_gpu {
  uint64_t mem_total, mem_used, mem_peak;
  uint64_t at;   /* the time line is known up to here */
  uint64_t busy; /* nanoseconds with a kernel running */
  int32_t current;
  int32_t queues;   /* contexts in use lie below this */
  uint32_t pending; /* operations of all of them */
  uint64_t sampled;
  uint32_t op_free, op_high, mark_free, mark_high, stream_high;
  struct fk_queue queue[FK_CTXS];
  struct fk_stream stream[FK_STREAMS];
  struct fk_op op[FK_OPS];
  struct fk_mark mark[FK_MARKS];
  struct fk_share share[FK_SHARES];
};

/* A thread that lives in virtual time: time moves only while all of them wait. */
struct fk_actor {
  uint32_t used, running;
  uint32_t stopped; /* its process was stopped: time does not wait for it */
  int32_t pid;
  _Atomic uint32_t word;
  uint64_t key, until;
};

/* How a GPU is, beside what runs on it. */
struct fk_health {
  uint32_t xid, xids; /* the last Xid, and how many there were */
  uint32_t remap_pending, remap_failed;
  uint32_t mig, lost;
  uint64_t ecc;
  uint32_t mig_flips; /* MIG mode is another one after the next reset */
};

/* A MIG device: a GPU instance with a compute instance. Device FK_GPUS + its place is its time line. */
struct fk_slice {
  uint32_t used, gpu, index; /* which GPU's, and its number there */
  uint32_t serial;           /* never the same again, in its UUID */
  uint32_t instance, compute_instance;
  uint32_t compute, slices; /* compute slices of its own, and of its GPU instance */
  char profile[24];         /* for example 1c.3g.40gb */
};

/* How busy a GPU was, in parts of its time line that follow each other without a gap. */
struct fk_samples {
  uint64_t at, busy; /* the next one begins here */
  uint32_t count;
  struct {
    uint64_t until;
    uint32_t percent;
  } ring[FK_SAMPLES];
};

struct fk_world {
  uint32_t magic, version;
  _Atomic uint32_t ready;
  uint32_t virtual_time;
  pthread_mutex_t lock;
  uint64_t now;
  uint32_t hold; /* virtual time stands still until this many threads have arrived */
  uint32_t gpus;
  uint64_t context_bytes;
  uint32_t actors; /* slots in use lie below this */
  struct fk_actor actor[FK_ACTORS];
  struct fk_gpu gpu[FK_DEVICES];
  struct fk_health health[FK_GPUS];
  uint64_t node; /* 48 bits that the UUIDs begin with, so that no two machines share one */
  char name[64]; /* its GPUs' model */
  struct fk_samples samples[FK_DEVICES];
  struct fk_slice slice[FK_SLICES];
  uint32_t serial; /* the last slice's */
  _Atomic uint32_t shares; /* how much exported memory there is */
  uint64_t space[FK_DEVICES][FK_CTXS]; /* in which space of process IDs a context's process lives */
};

struct fk_proc {
  const char *base;
  int version, per_thread;
  void *function;
  const char *symbol;
};
extern const struct fk_proc fk_procs[];
extern const unsigned fk_proc_count;

static inline uint64_t fk_up(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}
static inline uint64_t fk_granules(uint64_t bytes) {
  return fk_up(bytes, VC_GRANULE);
}

/* world.c */
struct fk_world *fk_world(void);
void fk_lock(void);
void fk_unlock(void);
uint64_t fk_now_locked(void);
/* With the lock held; it is let go while waiting. The word may be NULL. */
void fk_wait_locked(_Atomic uint32_t *word, uint32_t seen, uint64_t key, uint64_t until);
void fk_wake_locked(uint64_t key);
void fk_attach(void);
bool fk_over(void); /* the driver has been torn down */
const char *fk_setting(const char *name);
uint64_t fk_bytes(const char *text, uint64_t fallback);
/* The GPUs' compute capability, its major number. */
static inline int fk_capability(void) {
  return (int)fk_bytes(fk_setting("CAPABILITY"), 9);
}
/* Containers have process IDs of their own: whether a context's process is one that we can name. */
uint64_t fk_space(void);
/* A place stands for a queue, or for exported memory: it is held by a lock on the world's file, as a driver's objects
 * are by the open file that they were made through. So it is over once all descriptors of that open file are closed, in
 * forked children too. */
int fk_place_of_queue(int gpu, int queue);
int fk_place_of_share(int gpu, int share);
void fk_life_take(int place);
void fk_life_give(int place);
bool fk_life_over(int place);
/* Whether a child of ours may have inherited what holds our places. */
bool fk_life_shared(void);
/* A descriptor that holds a place by itself, or -1; and what another process finds in one that it was given. */
int fk_life_export(int place, uint32_t mark);
bool fk_life_import(int fd, int *place, uint32_t *mark);
/* Whether there is such a device: a GPU, or a MIG device. */
bool fk_there(unsigned device);
/* Divide a GPU as `profiles` says, such as "3g.40gb+4g.40gb"; "" for none, NULL to leave MIG mode.
 * Slices that are there already stay. The lock is held. */
void fk_divide(unsigned gpu, const char *profiles);
struct fk_slice *fk_slice_of(int device); /* NULL for a GPU */
void fk_uuid(int device, unsigned char out[16]);
void fk_uuid_text(int device, char *out, size_t size);
void fk_name(int gpu, char *out, size_t size);

/* engine.c; all with the lock held */
int fk_queue_open(int gpu);
void fk_queue_close(int gpu, int queue);
/* Where memory of this process is counted that is no context's; -1 if there is no room. */
int fk_queue_bare(int gpu);
/* A stream of a context; 0 if there is no room. */
uint32_t fk_stream_open(int gpu, int queue, bool legacy, bool blocking, int priority);
/* It goes when all that it holds is complete. */
void fk_stream_close(int gpu, uint32_t stream);
void fk_engine_advance(int gpu);
/* Queue an operation behind what the stream holds and return its number; waits while it is full. */
uint64_t fk_submit(int gpu, uint32_t stream, struct fk_op op);
struct fk_place fk_last(int gpu, uint32_t stream);
bool fk_finished(int gpu, struct fk_place place);
void fk_wait_place(int gpu, struct fk_place place);
void fk_wait_queue(int gpu, int queue);
/* When something changes next of itself. */
uint64_t fk_next_event(int gpu);
/* A host operation that is first in its stream: is it, and it has been done. */
bool fk_host_ready(int gpu, struct fk_place place);
void fk_host_done(int gpu, struct fk_place place);
uint64_t fk_host_key(int pid);
uint32_t fk_mark_open(int gpu);
void fk_mark_close(int gpu, uint32_t mark);
bool fk_mem_take(int gpu, int queue, uint64_t bytes);
void fk_mem_give(int gpu, int queue, uint64_t bytes);
/* What a queue took is exported: returns its number, -1 if there are too many. */
int fk_share_open(int gpu, int queue, uint64_t bytes);
void fk_share_let_go(int gpu, int share, int queue);
/* A queue holds it too. */
bool fk_share_hold(int gpu, int share, int queue);
/* A descriptor that holds it until it is closed, or -1; and whose such a descriptor is. */
int fk_share_export(int gpu, int share);
bool fk_share_of(int fd, int *gpu, int *share);
bool fk_small_take(int gpu, int queue, uint64_t bytes);
void fk_small_give(int gpu, int queue, uint64_t bytes);
/* This process is over: its contexts are gone. */
void fk_leave(void);
/* The only one without the lock held. */
void fk_reap(void);

/* proc.c */
int fk_missing(const char *name);
int fk_fault(const char *name);
/* Wait for a random time, if calls are to be late. */
extern uint64_t fk_lateness;
void fk_pause(void);
static inline void fk_late(const int *unused) {
  (void)unused;
  if (fk_lateness) fk_pause();
}
/* Zeroed memory for what a handle points to; given back, its address is the next one's of that size. */
void *fk_new(size_t size);
void fk_gone(void *object, size_t size);

#endif
