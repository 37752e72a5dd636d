/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the arbiter and the limiter share: three pages of memory and a short exchange of messages.
 *
 * The policy page is written by the arbiter alone (a memfd sealed against new writers); the usage
 * page is written by the tenant and is trusted only for hints; the bell is one futex word per seat,
 * on which its processes ring. All are sealed, so that their size cannot change.
 */
#ifndef VC_ABI_H
#define VC_ABI_H

#include <stdatomic.h>
#include <stdint.h>

#define VC_MAGIC 0x534b5643u
#define VC_VERSION 1u
#define VC_SLOTS 256u
#define VC_PERMILLE 1000u
#define VC_GRANULE (2ull << 20)
#define VC_RUNNING_BITS 10
#define VC_RUNNING ((1ull << VC_RUNNING_BITS) - 1)
/* A policy whose heartbeat has not changed for longer has no arbiter: the limiter limits itself. */
#define VC_STALE_NS 100000000ull
/* After so much idle time a seat hands over the GPU; a seat whose pauses are nearly all longer does so sooner. */
#define VC_LINGER_NS 100000ull
#define VC_LINGER_LEAST_NS 10000ull

enum vc_class { VC_IN_BUDGET = 0, VC_BACKGROUND = 1 };

struct vc_policy {
  uint32_t magic, version;
  _Atomic uint32_t gate; /* futex word; odd while the gate is open */
  _Atomic uint32_t confirmed;
  _Atomic uint32_t vclass;
  _Atomic uint32_t request, limit; /* per mille of one GPU */
  uint32_t virtual_time;           /* a fake GPU with a clock of its own */
  _Atomic uint64_t memory;         /* bytes this seat may hold */
  _Atomic uint64_t overhead;       /* bytes the driver holds for it beyond what it asked for */
  _Atomic uint64_t heartbeat;
  _Atomic uint32_t contended; /* another seat wants this GPU */
  _Atomic uint64_t depth_ns;  /* how much work may be in flight; 0: any amount */
  uint64_t gate_key, bell_key;
  uint8_t uuid[16];
  _Atomic uint32_t settling;      /* after a restart: not all processes that held memory have come back */
  _Atomic uint64_t context_bytes; /* what a context takes on this GPU */
  /* Bytes that the process in that slot has let go of while others could hold them, and that the
   * driver does not hold any more. The serial changes with every such message. */
  _Atomic uint32_t release_serial, release_slot;
  _Atomic uint64_t release_bytes;
  _Atomic uint64_t behind_ns; /* how much work the seat may have behind waits of its streams */
  _Atomic uint64_t beside_until; /* another seat's work was on the GPU until then; UINT64_MAX: it still is */
};

/* One process of a seat. Its bytes are the sum of charged and pending, so that wiping a dead
 * process's slot gives back all it held, at whatever instruction it died. */
struct vc_slot {
  _Alignas(128) _Atomic uint32_t live;
  _Atomic uint32_t pid; /* as the arbiter sees it */
  _Atomic uint64_t charged, pending;
  _Atomic uint32_t waiting;    /* threads at the gate whose streams are ready */
  _Atomic uint32_t inflight;   /* streams that are running */
  _Atomic uint64_t idle_since; /* when the last one was seen complete */
  _Atomic uint64_t busy_ns;    /* union of the intervals with work in flight */
  _Atomic uint64_t waited_ns;  /* time threads spent at the gate */
  _Atomic uint64_t launches;
  _Atomic uint32_t beat;    /* counts while the process is not stopped */
  _Atomic uint32_t linger_ns; /* idle for so long, it pauses; 0: VC_LINGER_NS */
  _Atomic uint64_t unit_ns; /* how long one launch of this process takes on the GPU */
  uint64_t unused;
  _Atomic uint64_t let_go; /* of charged: what others could hold as well, and this process does not hold any more */
  /* Since when it waits for its turn among the seat's processes, 0: it does not; when it last said so;
   * and when its long launches in flight are expected to end, 0: there is none. */
  _Atomic uint64_t turn_since, turn_seen, turn_end;
  _Atomic uint32_t behind, behind_us; /* launches behind waits, and how long they will take */
};

struct vc_usage {
  uint32_t magic, version;
  _Atomic uint32_t high; /* slots in use lie below this */
  _Atomic uint64_t peak;
  /* The union over its processes: how many have work in flight, in the lowest VC_RUNNING_BITS, and
   * above them since when one has, in units of 16 ns; and the sum of the intervals that are over. */
  _Atomic uint64_t running, busy_ns;
  _Atomic uint64_t forced_at; /* when a launch last joined what is behind waits though there was no room */
  struct vc_slot slot[VC_SLOTS];
};

struct vc_bell {
  _Atomic uint32_t word;
};

/* The messages on a seat's socket (SOCK_SEQPACKET): hello, its answer, which carries the descriptors of policy, usage
 * and bell, and a byte from the process once it has mapped them. Without that byte it holds nothing in its slot. */
struct vc_hello {
  uint32_t magic, version;
  int32_t slot;          /* the slot held before, or -1 */
  uint32_t acknowledges; /* 1: the byte will be sent */
};

struct vc_welcome {
  uint32_t magic, version;
  int32_t slot;
  uint32_t reserved;
};

/* The clock a fake GPU brings along; wait and wake pair on (word, key). */
struct vc_clock {
  uint64_t (*now)(void);
  void (*wait)(_Atomic uint32_t *word, uint32_t seen, uint64_t key, uint64_t deadline);
  void (*wake)(_Atomic uint32_t *word, uint64_t key);
};

#endif
