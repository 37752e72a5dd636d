/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs: a launch is one unit of work behind the gate, and always fenced. Memory that a graph's
 * nodes allocate is reserved by the driver when the graph first runs and stays until it is trimmed:
 * it is taken from the cap before, and settled by the device's attribute after.
 */
#include "bytes.h"
#include "context_limit.h"
#include "launch.h"
#include "memory.h"
#include "connection.h"
#include "meter.h"
#include "pool.h"

#include <stdlib.h>

static struct vc_meter meter;
static _Atomic uint32_t trims;
static struct vc_lock changing; /* while the driver changes an executable graph, or launches one that takes memory */
static struct vc_lock trimming; /* while the driver trims, no graph begins to take its memory */

/* ---- what a graph's nodes will take, its child graphs' too, however deep they lie ---- */

struct graphs {
  CUgraph *list;
  size_t count, room;
};

static bool push(struct graphs *g, CUgraph graph) {
  if (g->count == g->room) {
    CUgraph *more = realloc(g->list, (g->room = g->room ? 2 * g->room : 16) * sizeof *more);
    if (!more) return false;
    g->list = more;
  }
  g->list[g->count++] = graph;
  return true;
}

/* A kernel in it may need deeper stacks than its context has. */
static bool runs(CUgraphNode node) {
  CUDA_KERNEL_NODE_PARAMS kernel;
  if (VC_CALL(cuGraphKernelNodeGetParams_v2)(node, &kernel) != CUDA_SUCCESS) return true;
  if (!kernel.ctx) VC_CALL(cuCtxGetCurrent)(&kernel.ctx);
  return vc_context_runs(kernel.kern ? (void *)kernel.kern : (void *)kernel.func, kernel.ctx);
}

static uint64_t bytes_of(CUgraphNode node, struct graphs *children, bool *ok) {
  CUgraphNodeType type;
  CUDA_MEM_ALLOC_NODE_PARAMS alloc;
  CUgraph child;
  if (VC_CALL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS) return 0;
  if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
      VC_CALL(cuGraphMemAllocNodeGetParams)(node, &alloc) == CUDA_SUCCESS)
    return vc_granules(alloc.bytesize);
  if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
      VC_CALL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS)
    *ok &= push(children, child);
  if (type == CU_GRAPH_NODE_TYPE_KERNEL && atomic_load(&vc_deep_kernels)) *ok &= runs(node);
  return 0;
}

static uint64_t sum_of(CUgraph graph, struct graphs *children, bool *ok) {
  size_t count = 0;
  uint64_t bytes = 0;
  if (VC_CALL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || !count) return 0;
  CUgraphNode *nodes = calloc(count, sizeof *nodes);
  *ok &= nodes != NULL;
  if (!nodes || VC_CALL(cuGraphGetNodes)(graph, nodes, &count) != CUDA_SUCCESS) count = 0;
  for (size_t i = 0; i < count; i++) bytes = vc_plus(bytes, bytes_of(nodes[i], children, ok));
  free(nodes);
  return bytes;
}

/* A list and no recursion: the program chooses the depth, and how small its threads' stacks are.
 * False if there is no memory to look at all of them. */
static bool sum_nodes(CUgraph graph, uint64_t *bytes) {
  struct graphs left = {0};
  bool ok = push(&left, graph);
  *bytes = 0;
  while (ok && left.count) {
    CUgraph one = left.list[--left.count];
    *bytes = vc_plus(*bytes, sum_of(one, &left, &ok));
  }
  free(left.list);
  return ok;
}

/* ---- graph memory is the device's, and charged by what the driver says it has reserved ---- */

static struct vc_reading reserved(void *unused) {
  (void)unused;
  int count = 0;
  uint64_t sum = 0;
  bool ok = VC_CALL(cuDeviceGetCount)(&count) == CUDA_SUCCESS;
  for (CUdevice i = 0; i < count; i++) {
    cuuint64_t bytes = 0;
    ok &= VC_CALL(cuDeviceGetGraphMemAttribute)(i, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes) == CUDA_SUCCESS;
    sum += bytes;
  }
  return (struct vc_reading){sum, sum, !ok}; /* what other graphs' nodes left free does not count */
}

static bool take(uint64_t bytes) {
  if (!vc_seat_ready()) return false;
  if (vc_meter_begin(&meter, bytes, reserved, NULL)) return true;
  vc_pools_settle();
  return vc_meter_begin(&meter, bytes, reserved, NULL);
}

/* Note what a part of an executable graph needs, a child graph's node or NULL for the whole, if that is more than was
 * noted before; return the bytes noted before. They are kept as granules in `extra`: as the `bytes` of an entry with an
 * owner they would be given back with a context that gets the handle's address. */
static struct vc_item part_of(CUgraphExec exec, CUgraphNode node) {
  uint64_t turned = (uint64_t)(uintptr_t)node << 32 | (uint64_t)(uintptr_t)node >> 32;
  struct vc_item part = {.key = (uint64_t)(uintptr_t)exec ^ turned, .owner = exec, .kind = VC_EXEC_PART};
  vc_table_find(VC_EXEC_PART, part.key, &part);
  return part;
}

static void set_part(struct vc_item part, uint64_t bytes) {
  uint64_t granules = bytes / VC_GRANULE;
  part.extra = granules < UINT32_MAX ? (uint32_t)granules : UINT32_MAX;
  vc_table_set(part);
}

static uint64_t raise_part(CUgraphExec exec, CUgraphNode node, uint64_t bytes) {
  struct vc_item part = part_of(exec, node);
  uint64_t before = part.extra * VC_GRANULE;
  if (bytes > before) set_part(part, bytes);
  return before;
}

static void forget_part(const struct vc_item *unused) {
  (void)unused;
}

static void forget(CUgraphExec exec) {
  struct vc_item item;
  if (vc_table_take(VC_EXEC, (uint64_t)(uintptr_t)exec, &item)) vc_table_sweep(exec, VC_EXEC_PART, forget_part);
}

/* The handle may have been that of a graph that went with its context. */
static void remember(CUgraphExec exec, uint64_t bytes, uint32_t uploaded) {
  forget(exec);
  if (!bytes) return;
  raise_part(exec, NULL, bytes);
  vc_table_put((struct vc_item){.key = (uint64_t)(uintptr_t)exec,
                                .bytes = bytes,
                                .kind = VC_EXEC,
                                .extra = uploaded});
}

static CUresult instantiated(CUresult r, CUgraphExec *exec, CUgraph graph) {
  uint64_t bytes;
  if (r != CUDA_SUCCESS || !exec || !*exec) return r;
  if (sum_nodes(graph, &bytes)) {
    remember(*exec, bytes, UINT32_MAX);
    return r;
  }
  VC_CALL(cuGraphExecDestroy)(*exec);
  *exec = NULL;
  return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Begin to hold what is charged; returns how many trims there were. */
static uint32_t hold(void) {
  vc_lock(&trimming);
  vc_meter_hold(&meter, 1);
  uint32_t now = atomic_load(&trims);
  vc_unlock(&trimming);
  return now;
}

/* With the flag that says so, a graph is uploaded as it is made, and takes its memory then. */
static CUresult with_params(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p,
                            CUresult (*real)(CUgraphExec *, CUgraph,
                                             CUDA_GRAPH_INSTANTIATE_PARAMS *)) {
  uint64_t bytes = 0;
  bool upload = p && exec && graph && (p->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
  if (!upload) return instantiated(real(exec, graph, p), exec, graph);
  uint32_t now = hold();
  bool ok = sum_nodes(graph, &bytes) && take(bytes);
  CUresult r = ok ? real(exec, graph, p) : CUDA_ERROR_OUT_OF_MEMORY;
  vc_meter_hold(&meter, -1);
  if (ok) vc_meter_end(&meter, bytes, reserved, NULL);
  if (r == CUDA_SUCCESS) remember(*exec, bytes, now);
  return r;
}

VC_HOOK CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *bad, char *log, size_t size) {
  return instantiated(VC_CALL(cuGraphInstantiate)(exec, graph, bad, log, size), exec, graph);
}
VC_HOOK CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *bad, char *log, size_t size) {
  return instantiated(VC_CALL(cuGraphInstantiate_v2)(exec, graph, bad, log, size), exec, graph);
}
VC_HOOK CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
  return instantiated(VC_CALL(cuGraphInstantiateWithFlags)(exec, graph, flags), exec, graph);
}
VC_HOOK CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p) {
  return with_params(exec, graph, p, VC_REAL(cuGraphInstantiateWithParams));
}
VC_HOOK CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p) {
  return with_params(exec, graph, p, VC_REAL(cuGraphInstantiateWithParams_ptsz));
}

VC_HOOK CUresult cuGraphExecDestroy(CUgraphExec exec) {
  forget(exec);
  return VC_CALL(cuGraphExecDestroy)(exec);
}

/* A graph that was not launched since the last trim takes its memory now. One that was keeps it: a trim is counted
 * before the driver begins with it, and nothing is given back while the graph is on its way. */
static CUresult with_memory(CUgraphExec exec, CUstream stream,
                            CUresult (*real)(CUgraphExec, CUstream)) {
  struct vc_item item;
  uint64_t key = (uint64_t)(uintptr_t)exec;
  CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
  if (!vc_table_find(VC_EXEC, key, &item)) return real(exec, stream);
  vc_lock(&changing);
  vc_table_find(VC_EXEC, key, &item);
  uint32_t now = hold();
  uint64_t bytes = item.extra != now ? item.bytes : 0;
  bool ok = take(bytes);
  if (ok) r = real(exec, stream);
  vc_meter_hold(&meter, -1);
  if (ok) vc_meter_end(&meter, bytes, reserved, NULL);
  if (r == CUDA_SUCCESS && bytes) vc_table_mark(VC_EXEC, key, now);
  vc_unlock(&changing);
  return r;
}

/* ---- executable graphs that are changed: the driver takes more memory, or deeper stacks, at their next launch ---- */

static bool may_run(const void *kernel, CUcontext context) {
  if (!atomic_load(&vc_deep_kernels)) return true;
  if (!context) VC_CALL(cuCtxGetCurrent)(&context);
  return vc_context_runs(kernel, context);
}

/* What an executable graph needs is the most that it was made or updated from as a whole, and for each child graph
 * that was changed by itself the most that this needed: which child's memory the whole counts already is not known.
 * It is noted before the driver changes it, for another thread can launch it at once. */
struct change {
  struct vc_item all;
  CUgraphExec exec;
  CUgraphNode node;
  uint64_t before, bytes;
  bool known;
};

static struct change begin_change(CUgraphExec exec, CUgraphNode node, uint64_t bytes) {
  struct change c = {{.key = (uint64_t)(uintptr_t)exec, .kind = VC_EXEC}, exec, node, 0, bytes, false};
  vc_lock(&changing);
  c.known = vc_table_find(VC_EXEC, c.all.key, &c.all);
  if (bytes) c.before = raise_part(exec, node, bytes);
  if (bytes <= c.before) return c;
  struct vc_item all = c.all;
  all.bytes = vc_plus(all.bytes, bytes - c.before);
  all.extra = UINT32_MAX;
  vc_table_set(all);
  return c;
}

static CUresult end_change(struct change c, CUresult r) {
  struct vc_item all;
  if (r != CUDA_SUCCESS && c.bytes > c.before) {
    set_part(part_of(c.exec, c.node), c.before);
    if (c.known)
      vc_table_set(c.all);
    else
      vc_table_take(VC_EXEC, c.all.key, &all);
  }
  vc_unlock(&changing);
  return r;
}

#define CHANGE(exec, node, bytes, call)                                                                              \
  struct change c_ = begin_change(exec, node, bytes);                                                                \
  return end_change(c_, call)

VC_HOOK CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *bad, CUgraphExecUpdateResult *result) {
  uint64_t bytes = 0;
  if (exec && graph && !sum_nodes(graph, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CHANGE(exec, NULL, bytes, VC_CALL(cuGraphExecUpdate)(exec, graph, bad, result));
}
VC_HOOK CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *result) {
  uint64_t bytes = 0;
  if (exec && graph && !sum_nodes(graph, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CHANGE(exec, NULL, bytes, VC_CALL(cuGraphExecUpdate_v2)(exec, graph, result));
}
VC_HOOK CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
  uint64_t bytes = 0;
  if (exec && child && !sum_nodes(child, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CHANGE(exec, node, bytes, VC_CALL(cuGraphExecChildGraphNodeSetParams)(exec, node, child));
}
VC_HOOK CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
  if (p && !may_run(p->func, NULL)) return CUDA_ERROR_OUT_OF_MEMORY;
  return VC_CALL(cuGraphExecKernelNodeSetParams)(exec, node, p);
}
VC_HOOK CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                   const CUDA_KERNEL_NODE_PARAMS *p) {
  if (p && !may_run(p->kern ? (void *)p->kern : (void *)p->func, p->ctx)) return CUDA_ERROR_OUT_OF_MEMORY;
  return VC_CALL(cuGraphExecKernelNodeSetParams_v2)(exec, node, p);
}
VC_HOOK CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *p) {
  uint64_t bytes = 0;
  bool ok = true;
  if (p && p->type == CU_GRAPH_NODE_TYPE_KERNEL)
    ok = may_run(p->kernel.kern ? (void *)p->kernel.kern : (void *)p->kernel.func, p->kernel.ctx);
  if (p && p->type == CU_GRAPH_NODE_TYPE_GRAPH && p->graph.graph) ok = sum_nodes(p->graph.graph, &bytes);
  if (!ok) return CUDA_ERROR_OUT_OF_MEMORY;
  CHANGE(exec, node, bytes, VC_CALL(cuGraphExecNodeSetParams)(exec, node, p));
}

static CUresult launch(CUgraphExec exec, CUstream stream, CUstream given,
                       CUresult (*real)(CUgraphExec, CUstream)) {
  struct vc_ticket ticket;
  CUresult r = vc_launch_begin(&ticket, stream, exec, VC_GRAPH);
  if (r != CUDA_SUCCESS) return r;
  r = ticket.stream ? with_memory(exec, given, real) : real(exec, given);
  vc_launch_end(&ticket, r);
  return r;
}

VC_HOOK CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  return launch(exec, stream, stream, VC_REAL(cuGraphLaunch));
}
VC_HOOK CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  return launch(exec, vc_per_thread(stream), stream, VC_REAL(cuGraphLaunch_ptsz));
}
VC_HOOK CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
  if (!vc_seat_ready()) return CUDA_ERROR_SYSTEM_NOT_READY;
  return with_memory(exec, stream, VC_REAL(cuGraphUpload));
}
VC_HOOK CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
  if (!vc_seat_ready()) return CUDA_ERROR_SYSTEM_NOT_READY;
  return with_memory(exec, stream, VC_REAL(cuGraphUpload_ptsz));
}

VC_HOOK CUresult cuDeviceGraphMemTrim(CUdevice device) {
  vc_lock(&trimming);
  atomic_fetch_add(&trims, 1);
  CUresult r = VC_CALL(cuDeviceGraphMemTrim)(device);
  vc_unlock(&trimming);
  vc_meter_settle(&meter, reserved, NULL);
  return r;
}

void vc_graph_reset(void) {
  meter = (struct vc_meter){0};
  atomic_store(&trimming.word, 0);
  atomic_store(&changing.word, 0);
}
