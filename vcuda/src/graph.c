/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs: a launch is one unit of work behind the gate, and always fenced. Memory that a graph's
 * nodes allocate is reserved by the driver when the graph first runs and stays until it is trimmed:
 * it is taken from the cap before, and settled by the device's attribute after.
 */
#include "account.h"
#include "launch.h"
#include "memory.h"
#include "connection.h"

#include <stdlib.h>

#define DEPTH 16 /* of child graphs */

static struct vc_lock guard;
static uint64_t charged;
static uint32_t trims;

static uint64_t sum_nodes(CUgraph graph, int depth) {
  size_t count = 0;
  uint64_t bytes = 0;
  if (depth > DEPTH || VC_CALL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || !count)
    return 0;
  CUgraphNode *nodes = calloc(count, sizeof *nodes);
  if (!nodes || VC_CALL(cuGraphGetNodes)(graph, nodes, &count) != CUDA_SUCCESS) count = 0;
  for (size_t i = 0; i < count; i++) {
    CUgraphNodeType type;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;
    CUgraph child;
    if (VC_CALL(cuGraphNodeGetType)(nodes[i], &type) != CUDA_SUCCESS) continue;
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
        VC_CALL(cuGraphMemAllocNodeGetParams)(nodes[i], &alloc) == CUDA_SUCCESS)
      bytes += vc_granules(alloc.bytesize);
    if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
        VC_CALL(cuGraphChildGraphNodeGetGraph)(nodes[i], &child) == CUDA_SUCCESS)
      bytes += sum_nodes(child, depth + 1);
  }
  free(nodes);
  return bytes;
}

static CUresult instantiated(CUresult r, CUgraphExec *exec, CUgraph graph) {
  if (r != CUDA_SUCCESS || !exec || !*exec) return r;
  uint64_t bytes = sum_nodes(graph, 0);
  struct vc_item item = {
      .key = (uint64_t)(uintptr_t)*exec, .bytes = bytes, .kind = VC_EXEC, .extra = UINT32_MAX};
  if (bytes) vc_table_put(item);
  return r;
}

VC_HOOK(cuGraphInstantiate,
        (CUgraphExec * exec, CUgraph graph, CUgraphNode *bad, char *log, size_t size)) {
  return instantiated(VC_CALL(cuGraphInstantiate)(exec, graph, bad, log, size), exec, graph);
}
VC_HOOK(cuGraphInstantiate_v2,
        (CUgraphExec * exec, CUgraph graph, CUgraphNode *bad, char *log, size_t size)) {
  return instantiated(VC_CALL(cuGraphInstantiate_v2)(exec, graph, bad, log, size), exec, graph);
}
VC_HOOK(cuGraphInstantiateWithFlags,
        (CUgraphExec * exec, CUgraph graph, unsigned long long flags)) {
  return instantiated(VC_CALL(cuGraphInstantiateWithFlags)(exec, graph, flags), exec, graph);
}
VC_HOOK(cuGraphInstantiateWithParams,
        (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p)) {
  return instantiated(VC_CALL(cuGraphInstantiateWithParams)(exec, graph, p), exec, graph);
}
VC_HOOK(cuGraphInstantiateWithParams_ptsz,
        (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p)) {
  return instantiated(VC_CALL(cuGraphInstantiateWithParams_ptsz)(exec, graph, p), exec, graph);
}

VC_HOOK(cuGraphExecDestroy, (CUgraphExec exec)) {
  struct vc_item item;
  vc_table_take(VC_EXEC, (uint64_t)(uintptr_t)exec, &item);
  return VC_CALL(cuGraphExecDestroy)(exec);
}

/* With the guard held. */
static void settle(void) {
  CUdevice device;
  cuuint64_t reserved = 0;
  if (VC_CALL(cuCtxGetDevice)(&device) != CUDA_SUCCESS) return;
  VC_CALL(cuDeviceGetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved);
  if (reserved > charged)
    vc_book(reserved - charged);
  else
    vc_unreserve(charged - reserved);
  charged = reserved;
}

/* Call with the graph's memory taken from the cap, if it may need any. */
static CUresult with_memory(CUgraphExec exec, CUstream stream,
                            CUresult (*real)(CUgraphExec, CUstream)) {
  struct vc_item item;
  uint64_t key = (uint64_t)(uintptr_t)exec;
  if (!vc_table_find(VC_EXEC, key, &item)) return real(exec, stream);
  vc_lock(&guard);
  CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
  bool fresh = item.extra != trims;
  if (!fresh || vc_reserve(item.bytes)) {
    /* What was taken counts as the device's own until it is settled: let go of in between, it could
     * be another process's. */
    if (fresh) charged += item.bytes;
    r = real(exec, stream);
    settle();
    if (r == CUDA_SUCCESS && fresh && vc_table_take(VC_EXEC, key, &item)) {
      item.extra = trims;
      vc_table_put(item);
    }
  }
  vc_unlock(&guard);
  return r;
}

static CUresult launch(CUgraphExec exec, CUstream stream, CUstream given,
                       CUresult (*real)(CUgraphExec, CUstream)) {
  struct vc_ticket ticket;
  CUresult r = vc_launch_begin(&ticket, stream, VC_GRAPH);
  if (r != CUDA_SUCCESS) return r;
  r = ticket.lane ? with_memory(exec, given, real) : real(exec, given);
  vc_launch_end(&ticket, r);
  return r;
}

VC_HOOK(cuGraphLaunch, (CUgraphExec exec, CUstream stream)) {
  return launch(exec, stream, stream, VC_REAL(cuGraphLaunch));
}
VC_HOOK(cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream)) {
  return launch(exec, vc_per_thread(stream), stream, VC_REAL(cuGraphLaunch_ptsz));
}
VC_HOOK(cuGraphUpload, (CUgraphExec exec, CUstream stream)) {
  if (!vc_seat_ready()) return CUDA_ERROR_SYSTEM_NOT_READY;
  return with_memory(exec, stream, VC_REAL(cuGraphUpload));
}
VC_HOOK(cuGraphUpload_ptsz, (CUgraphExec exec, CUstream stream)) {
  if (!vc_seat_ready()) return CUDA_ERROR_SYSTEM_NOT_READY;
  return with_memory(exec, stream, VC_REAL(cuGraphUpload_ptsz));
}

VC_HOOK(cuDeviceGraphMemTrim, (CUdevice device)) {
  CUresult r = VC_CALL(cuDeviceGraphMemTrim)(device);
  vc_lock(&guard);
  trims++;
  settle();
  vc_unlock(&guard);
  return r;
}
