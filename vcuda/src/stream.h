/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The streams that threads launch in, each with its lane, and the driver's side of it: events are
 * recorded and asked here, with the stream's own context current.
 */
#ifndef VC_STREAM_H
#define VC_STREAM_H

#include "launch_duration.h"
#include "hook.h"
#include "stream_lane.h"

#define VC_CACHED 16u
#define VC_STEP_MAX 64u

/* What a fence marks besides its place in the lane. The function and not what is known of it: while it is in flight,
 * its place in the table of durations may be given to another one. */
struct vc_note {
  CUevent event;
  const void *key; /* NULL: launches of several functions */
  uint64_t ns;     /* expected of them */
  uint64_t since;  /* when the first was made; 0: unknown */
  uint64_t made;   /* when all of them had been made */
  uint32_t launches;
};

struct vc_stream {
  struct vc_lane lane;
  _Atomic(CUstream) handle;
  _Atomic(const void *) key; /* the function launched last; only its launches take the fast path */
  uint32_t left;   /* launches before the slow path is due; the thread's own */
  _Atomic uint32_t owned;
  struct vc_lock lock;
  bool per_thread; /* only the thread itself can name this stream to the driver */
  bool frozen;     /* its context may be going */
  _Atomic bool shown; /* counted as active */
  _Atomic bool wanted; /* its thread waits at the gate with a launch for it */
  bool refused;       /* the driver would not record; the stream itself is asked */
  _Atomic(CUcontext) context;
  uint64_t each;                     /* expected of one launch of `key` */
  uint64_t folded;                   /* launches counted in `pending` */
  struct vc_note pending;            /* what no fence covers */
  _Atomic uint64_t queued;           /* expected of all that is in flight */
  _Atomic uint64_t behind, before_wait; /* expected of what is behind waits; launches before the first of them */
  uint64_t open_at, last_open_at;    /* no fence, and not that of the last launch, was complete until then */
  uint64_t last_done, seen;          /* and the keeper's memory */
  struct vc_note note[VC_FENCES];
  struct vc_stream *next, *mine;
};

/* This thread's streams by their handles; never NULL entries. */
extern __thread struct vc_stream *vc_cached[VC_CACHED] __attribute__((tls_model("initial-exec")));

static inline unsigned vc_stream_slot(CUstream handle) {
  uintptr_t h = (uintptr_t)handle;
  return (unsigned)(h >> 4 ^ h >> 10) % VC_CACHED;
}

/* Return the thread's lane in a stream; NULL if there is no memory, no context or no such stream. */
struct vc_stream *vc_stream_of(CUstream handle);
/* Another context may be current now, with another default stream. */
void vc_stream_uncache(void);

/* With the stream's lock held: */
/* Add the launches of the fast path to what is pending. */
void vc_stream_fold(struct vc_stream *s);
/* Record a fence behind all launches that have ended; false if the driver refuses. */
bool vc_stream_fence(struct vc_stream *s, bool wait, uint64_t now);
/* Ask the driver what is complete, and publish whether the lane is active; a time of 0 means now. */
void vc_stream_poll(struct vc_stream *s, uint64_t now);
void vc_stream_show(struct vc_stream *s, uint64_t then, uint64_t now);
/* When the GPU can have begun with the launches of a note, at the earliest. */
static inline uint64_t vc_stream_began(const struct vc_stream *s, const struct vc_note *n) {
  return n->since > s->last_done ? n->since : s->last_done;
}
/* What the launches of a note say of their function: they were not all complete at `open_at`, and are now. */
void vc_stream_measure(const struct vc_stream *s, const struct vc_note *note, uint64_t open_at, uint64_t now);
/* All that the thread had launched is complete. */
void vc_stream_drained(struct vc_stream *s, uint64_t upto, uint64_t now);

/* Visit this thread's lanes in one stream, or in a context. */
void vc_stream_mine(void (*visit)(struct vc_stream *, uint64_t), uint64_t argument, const CUstream *handle,
                    CUcontext context);
/* Visit all lanes of this thread. */
void vc_stream_own(void (*visit)(struct vc_stream *, uint64_t), uint64_t argument);
/* Visit every stream of the process, without a lock. */
void vc_stream_each(void (*visit)(struct vc_stream *, uint64_t), uint64_t argument);
/* The driver is about to destroy a stream, whose work in flight stays known by its events, or a context, which takes
 * the events along: freeze it before, and forget it after or unfreeze it if the call failed. */
void vc_stream_destroyed(CUstream handle);
void vc_stream_freeze(CUcontext context, bool frozen);
void vc_stream_forget(CUcontext context);
/* Note the streams of a frozen context under another name, or under the old one again. */
void vc_stream_rename(CUcontext from, CUcontext to);
/* In a forked child. */
void vc_stream_reset(void);

/* Around our own calls on a context's streams and events: make it current, and let no capture end. */
struct vc_around {
  CUstreamCaptureMode mode;
  bool pushed;
};
struct vc_around vc_stream_enter(CUcontext context);
void vc_stream_leave(struct vc_around around);

/* While some stream of the process is under capture, our own calls must not end that capture. */
extern _Atomic int vc_captures;
/* Whether this stream is under capture. */
bool vc_stream_capturing(CUstream handle);

#endif
