/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the fake driver share beside the world. */
#ifndef FAKE_API_H
#define FAKE_API_H

#define __CUDA_API_VERSION_INTERNAL 1
#include "cuda.h"

#include "fake.h"

/* Every implemented function; the others are generated stubs. */
#define FK_API(name, arguments) __attribute__((visibility("default"))) CUresult name arguments
#define FK_RESULT(name, arguments, result)                                                         \
  FK_API(name, arguments) {                                                                        \
    return result;                                                                                 \
  }

/* A call that is late as SLICEKEEPER_FAKE_LATE says, as it begins and when it has done its work. */
#define FK_LATE                                                                                    \
  __attribute__((cleanup(fk_late))) int late_ = 0;                                                 \
  fk_late(&late_)

#define FK_ENTER(name)                                                                             \
  FK_LATE;                                                                                         \
  do {                                                                                             \
    if (fk_over()) return CUDA_ERROR_DEINITIALIZED;                                                \
    fk_attach();                                                                                   \
    int fault = fk_fault(name);                                                                    \
    if (fault) return (CUresult)fault;                                                             \
  } while (0)

/* A call on a stream, for both streams that a NULL may mean; the result says `s` for it. */
#define FK_STREAM_API(name, arguments, result)                                                     \
  FK_API(name, arguments) {                                                                        \
    FK_ENTER(#name);                                                                               \
    struct CUstream_st *s = fk_stream_of(stream, false);                                           \
    return result;                                                                                 \
  }                                                                                                \
  FK_API(name##_ptsz, arguments) {                                                                 \
    FK_ENTER(#name "_ptsz");                                                                       \
    struct CUstream_st *s = fk_stream_of(stream, true);                                            \
    return result;                                                                                 \
  }

/* A lock of this file's that a child of a fork finds free, though another thread held it. */
#define FK_GUARD(name)                                                                             \
  static pthread_mutex_t name = PTHREAD_MUTEX_INITIALIZER;                                         \
  static void name##_after_fork(void) {                                                            \
    pthread_mutex_init(&name, NULL);                                                               \
  }                                                                                                \
  __attribute__((constructor)) static void name##_watch_forks(void) {                              \
    pthread_atfork(NULL, NULL, name##_after_fork);                                                 \
  }

struct CUctx_st {
  int gpu, queue;
  bool primary;
  unsigned attached; /* beyond the first use of it */
  bool dead;
  uint64_t stack, heap, fifo, depth, pending; /* limits; 0: as they come */
  unsigned life; /* a primary context that was reset is another one at the same address */
  bool listed;
  struct CUctx_st *whole; /* of a green one: the primary context that it is a part of */
  struct CUctx_st *next; /* of all contexts that there were */
};

struct CUstream_st {
  CUcontext ctx;
  unsigned life;
  uint32_t slot;
  CUgraph capture;
  bool joined; /* to another stream's capture, by a wait for an event */
  bool invalid;
  bool per_thread;
  CUstreamCaptureMode mode;
  unsigned flags;
  int priority;
  struct CUstream_st *next; /* of all streams of this process */
};

struct CUevent_st {
  CUcontext ctx;
  unsigned life;
  struct fk_place place;
  uint32_t mark;
  CUgraph capture; /* recorded in a stream under capture */
};

struct CUfunc_st {
  char name[128];
  uint64_t fixed_ns;
  bool from_argument;
  void *module;
  uint64_t local; /* bytes of local memory in each thread */
  uint32_t width; /* 0: by the launch's blocks */
};

struct CUgraph_st {
  struct fk_nodes *nodes;
  struct fk_condition *conditions; /* handles that were made for it */
  bool conditional;                /* the body of a conditional node */
};

struct CUgraphNode_st {
  CUgraphNodeType type;
  CUcontext ctx; /* a kernel's; NULL: the one in which the graph is launched */
  CUfunction function;
  uint64_t work;
  uint32_t width;
  CUdeviceptr pointer;
  size_t bytes;
  CUgraph *body; /* a child graph, or the graphs that a conditional node chooses from */
  unsigned bodies;
  struct fk_condition *condition;
  CUgraphConditionalNodeType choice;
  unsigned times; /* a kernel that ends the loop of its condition: after so many rounds */
};

struct fk_step {
  CUcontext ctx;
  uint64_t work, local;
  uint32_t width;
};

struct CUgraphExec_st {
  struct fk_step *step;
  unsigned steps, children;
  struct fk_child *child; /* the child graphs that were changed */
  uint64_t bytes;
  uint64_t reserved; /* of bytes: what the device has reserved for it, unless it was trimmed since */
  unsigned reserved_at; /* the trim after which that was, 0 for never */
};

/* The one that is current, for a green one the primary context: what is made there is that one's. */
CUcontext fk_current(void);
static inline CUcontext fk_whole(CUcontext ctx) {
  return ctx && ctx->whole ? ctx->whole : ctx;
}
/* Which GPU of the world a device is, -1 if there is no such device. */
int fk_gpu_of_device(CUdevice device);
/* A descriptor that holds the plain memory at an address. */
CUresult fk_block_export(int *out, CUdeviceptr address);
void *fk_map(uint64_t bytes);
void fk_unmap(void *address, uint64_t bytes);
/* The stream meant; NULL without a context. `own`: 0 is the thread's own stream. */
struct CUstream_st *fk_stream_of(CUstream stream, bool own);
struct CUstream_st *fk_stream(CUstream stream);
/* What a copy has to do with: where the memory lies that an address is in. */
enum fk_place_kind { FK_PAGEABLE, FK_PINNED, FK_MANAGED, FK_DEVICE };
enum fk_place_kind fk_place_kind(const void *address);
bool fk_mapped(CUdeviceptr address);
/* Wait for all that the stream holds. */
void fk_drain(struct CUstream_st *stream);
/* Two commands of blocking streams do not run side by side if this comes between them. */
void fk_order(CUcontext ctx);
/* Wait for all that the context's streams hold, as calls do that the documents allow to. */
void fk_wait_context(CUcontext ctx);
/* Queue work of a kernel, or with none a point in the stream. */
void fk_push(struct CUstream_st *stream, uint64_t work, uint32_t width);
/* The same, in another context maybe: the stream waits for it. */
CUresult fk_push_in(struct CUstream_st *stream, CUcontext ctx, uint64_t work, uint32_t width);
void fk_streams_forget(CUcontext ctx);
uint32_t fk_width(CUfunction f, uint64_t blocks, unsigned threads);
/* A call that a capture elsewhere forbids; it breaks that capture. */
bool fk_unsafe(void);
/* Whether it is under capture, which then does not end before the latter is called. */
bool fk_capture_hold(struct CUstream_st *stream);
void fk_capture_let_go(void);
void fk_capture_began(struct CUstream_st *stream, CUstreamCaptureMode mode);
void fk_capture_ended(struct CUstream_st *stream);
struct CUgraphNode_st *fk_node_add(CUgraph graph, CUgraphNodeType type);
/* Take what a module's global variables need, if that is still to be done. */
CUresult fk_module_use(void *module, CUcontext ctx);
/* While contexts are held, none is made or ended; for the three calls that follow. */
void fk_contexts_hold(void);
void fk_contexts_let_go(void);
CUresult fk_libraries_use(CUcontext ctx);
/* Call for the contexts there are, until one says that something is wrong. */
CUresult fk_each_context(CUresult (*visit)(CUcontext ctx));
/* Take device memory for a context, and give it back unless the context has ended since: it lives as `life` says. */
bool fk_take(CUcontext ctx, uint64_t bytes, unsigned *life);
void fk_give(CUcontext ctx, uint64_t bytes, unsigned life);
/* The name of a kernel that the module lists, or NULL. */
const char *fk_module_entry(void *module, unsigned number);
/* Make the stacks large enough for a kernel. */
CUresult fk_local(CUcontext ctx, uint64_t bytes);
void fk_pools_settle(int gpu);
/* Free plain memory whose streams have reached the point at which it was freed. */
void fk_blocks_settle(void);
void fk_forget(CUcontext ctx);
CUresult fk_graph_alloc(CUgraphNode *out, CUgraph graph, size_t bytes, CUdeviceptr *pointer);

#endif
