/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the fake driver share beside the world. */
#ifndef FAKE_API_H
#define FAKE_API_H

#define __CUDA_API_VERSION_INTERNAL 1
#include "cuda.h"

#include "fake.h"

/* Every implemented function; the others are generated stubs. */
#define FK_API(name, arguments) __attribute__((visibility("default"))) CUresult name arguments

#define FK_ENTER(name)                                                                             \
  do {                                                                                             \
    fk_attach();                                                                                   \
    int fault = fk_fault(name);                                                                    \
    if (fault) return (CUresult)fault;                                                             \
  } while (0)

struct CUctx_st {
  int gpu, queue;
  bool primary;
  bool dead;
  uint64_t stack, heap; /* limits; 0: as they come */
};

struct CUstream_st {
  CUcontext ctx;
  uint64_t last; /* number of its last operation */
  CUgraph capture;
  unsigned flags;
};

struct CUevent_st {
  CUcontext ctx;
  uint64_t seq, when;
};

struct CUfunc_st {
  char name[128];
  uint64_t fixed_ns;
  bool from_argument;
  uint64_t local; /* bytes of local memory in each thread */
};

struct CUgraph_st {
  unsigned nodes, room;
  struct CUgraphNode_st **node;
};

struct CUgraphNode_st {
  CUgraphNodeType type;
  uint64_t work;
  CUdeviceptr pointer;
  size_t bytes;
  CUgraph child;
};

struct CUgraphExec_st {
  uint64_t work, bytes;
  unsigned reserved; /* the trim after which it was, 0 for never */
};

CUcontext fk_current(void);
void *fk_map(uint64_t bytes);
void fk_unmap(void *address, uint64_t bytes);
struct CUstream_st *fk_stream(CUstream stream);
struct CUgraphNode_st *fk_node_add(CUgraph graph, CUgraphNodeType type);
/* Take what a module's global variables need, if that is still to be done. */
CUresult fk_module_use(void *module);
/* Make the stacks large enough for a kernel. */
CUresult fk_local(CUcontext ctx, uint64_t bytes);
void fk_pools_settle(int gpu);
void fk_forget(CUcontext ctx);
CUresult fk_graph_alloc(CUgraphNode *out, CUgraph graph, size_t bytes, CUdeviceptr *pointer);

#endif
