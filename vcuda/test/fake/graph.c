/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: a list of nodes; an executable graph is the sum of their work. */
#define _GNU_SOURCE
#include "api.h"

#include <stdlib.h>
#include <string.h>

static struct {
  CUcontext ctx;
  uint64_t reserved;
} graph_memory[FK_GPUS];
static unsigned trims = 1;

FK_API(cuGraphCreate, (CUgraph * out, unsigned flags)) {
  (void)flags;
  *out = calloc(1, sizeof **out);
  return CUDA_SUCCESS;
}

FK_API(cuGraphDestroy, (CUgraph graph)) {
  for (unsigned i = 0; i < graph->nodes; i++) free(graph->node[i]);
  free(graph->node);
  free(graph);
  return CUDA_SUCCESS;
}

struct CUgraphNode_st *fk_node_add(CUgraph graph, CUgraphNodeType type) {
  if (graph->nodes == graph->room) {
    graph->room = graph->room ? 2 * graph->room : 16;
    graph->node = realloc(graph->node, graph->room * sizeof *graph->node);
  }
  struct CUgraphNode_st *n = calloc(1, sizeof *n);
  n->type = type;
  graph->node[graph->nodes++] = n;
  return n;
}

static uint64_t kernel_work(CUfunction f, CUkernel kernel, void **params) {
  CUfunction known = f ? f : (CUfunction)kernel;
  return known->from_argument && params ? *(uint64_t *)params[0] : known->fixed_ns;
}

FK_API(cuGraphAddKernelNode_v2, (CUgraphNode * out, CUgraph graph, const CUgraphNode *after,
                                 size_t count, const CUDA_KERNEL_NODE_PARAMS *p)) {
  (void)after, (void)count;
  *out = fk_node_add(graph, CU_GRAPH_NODE_TYPE_KERNEL);
  (*out)->work = kernel_work(p->func, p->kern, p->kernelParams);
  (*out)->width = fk_width(p->func ? p->func : (CUfunction)p->kern,
                           (uint64_t)p->gridDimX * p->gridDimY * p->gridDimZ,
                           p->blockDimX * p->blockDimY * p->blockDimZ);
  return CUDA_SUCCESS;
}

FK_API(cuGraphAddEmptyNode,
       (CUgraphNode * out, CUgraph graph, const CUgraphNode *after, size_t count)) {
  (void)after, (void)count;
  *out = fk_node_add(graph, CU_GRAPH_NODE_TYPE_EMPTY);
  return CUDA_SUCCESS;
}

FK_API(cuGraphAddChildGraphNode,
       (CUgraphNode * out, CUgraph graph, const CUgraphNode *after, size_t count, CUgraph child)) {
  (void)after, (void)count;
  *out = fk_node_add(graph, CU_GRAPH_NODE_TYPE_GRAPH);
  (*out)->child = child;
  return CUDA_SUCCESS;
}

FK_API(cuGraphChildGraphNodeGetGraph, (CUgraphNode node, CUgraph *out)) {
  *out = node->child;
  return CUDA_SUCCESS;
}

CUresult fk_graph_alloc(CUgraphNode *out, CUgraph graph, size_t bytes, CUdeviceptr *pointer) {
  struct CUgraphNode_st *n = fk_node_add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
  n->bytes = bytes;
  n->pointer = *pointer = (CUdeviceptr)fk_map(bytes);
  if (out) *out = n;
  return CUDA_SUCCESS;
}

FK_API(cuGraphAddMemAllocNode, (CUgraphNode * out, CUgraph graph, const CUgraphNode *after,
                                size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *p)) {
  FK_ENTER("cuGraphAddMemAllocNode");
  (void)after, (void)count;
  return fk_graph_alloc(out, graph, p->bytesize, &p->dptr);
}

FK_API(cuGraphAddMemFreeNode, (CUgraphNode * out, CUgraph graph, const CUgraphNode *after,
                               size_t count, CUdeviceptr pointer)) {
  (void)after, (void)count;
  *out = fk_node_add(graph, CU_GRAPH_NODE_TYPE_MEM_FREE);
  (*out)->pointer = pointer;
  return CUDA_SUCCESS;
}

FK_API(cuGraphMemAllocNodeGetParams, (CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *p)) {
  memset(p, 0, sizeof *p);
  p->bytesize = node->bytes;
  p->dptr = node->pointer;
  return CUDA_SUCCESS;
}

FK_API(cuGraphAddNode, (CUgraphNode * out, CUgraph graph, const CUgraphNode *after, size_t count,
                        CUgraphNodeParams *p)) {
  (void)after, (void)count;
  if (p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
    return fk_graph_alloc(out, graph, p->alloc.bytesize, &p->alloc.dptr);
  *out = fk_node_add(graph, p->type);
  (*out)->width = FK_WHOLE;
  if (p->type == CU_GRAPH_NODE_TYPE_KERNEL)
    (*out)->work = kernel_work(p->kernel.func, p->kernel.kern, p->kernel.kernelParams);
  if (p->type == CU_GRAPH_NODE_TYPE_GRAPH) (*out)->child = p->graph.graph;
  return CUDA_SUCCESS;
}

FK_API(cuGraphGetNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count)) {
  size_t room = *count;
  *count = graph->nodes;
  for (size_t i = 0; nodes && i < room && i < graph->nodes; i++) nodes[i] = graph->node[i];
  return CUDA_SUCCESS;
}

FK_API(cuGraphNodeGetType, (CUgraphNode node, CUgraphNodeType *type)) {
  *type = node->type;
  return CUDA_SUCCESS;
}

static void sum(CUgraph graph, uint64_t *work, uint64_t *bytes, uint32_t *width) {
  for (unsigned i = 0; i < graph->nodes; i++) {
    struct CUgraphNode_st *n = graph->node[i];
    *work += n->work;
    if (n->width > *width) *width = n->width;
    if (n->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
      *bytes += (n->bytes + VC_GRANULE - 1) / VC_GRANULE * VC_GRANULE;
    if (n->child) sum(n->child, work, bytes, width);
  }
}

FK_API(cuGraphInstantiateWithFlags, (CUgraphExec * out, CUgraph graph, unsigned long long flags)) {
  FK_ENTER("cuGraphInstantiateWithFlags");
  /* Only the form with parameters has a stream to upload in. */
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) return CUDA_ERROR_INVALID_VALUE;
  *out = calloc(1, sizeof **out);
  sum(graph, &(*out)->work, &(*out)->bytes, &(*out)->width);
  return CUDA_SUCCESS;
}
FK_API(cuGraphInstantiateWithParams,
       (CUgraphExec * out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p)) {
  bool upload = p->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  p->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  CUresult r = cuGraphInstantiateWithFlags(
      out, graph, p->flags & ~(cuuint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
  if (r == CUDA_SUCCESS && upload) r = cuGraphUpload(*out, p->hUploadStream);
  return r;
}
FK_API(cuGraphInstantiateWithParams_ptsz,
       (CUgraphExec * out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p)) {
  return cuGraphInstantiateWithParams(out, graph, p);
}
FK_API(cuGraphInstantiate_v2,
       (CUgraphExec * out, CUgraph graph, CUgraphNode *bad, char *log, size_t size)) {
  (void)bad, (void)log, (void)size;
  return cuGraphInstantiateWithFlags(out, graph, 0);
}
FK_API(cuGraphInstantiate,
       (CUgraphExec * out, CUgraph graph, CUgraphNode *bad, char *log, size_t size)) {
  return cuGraphInstantiate_v2(out, graph, bad, log, size);
}

FK_API(cuGraphExecDestroy, (CUgraphExec exec)) {
  free(exec);
  return CUDA_SUCCESS;
}

/* Graph memory stays reserved on the device until it is trimmed. */
static bool reserve(CUcontext ctx, CUgraphExec exec) {
  if (exec->reserved == trims || !exec->bytes) return true;
  fk_lock();
  bool ok = fk_mem_take(ctx->gpu, ctx->queue, exec->bytes);
  if (ok) {
    graph_memory[ctx->gpu].ctx = ctx;
    graph_memory[ctx->gpu].reserved += exec->bytes;
  }
  fk_unlock();
  if (ok) exec->reserved = trims;
  return ok;
}

FK_API(cuGraphUpload, (CUgraphExec exec, CUstream stream)) {
  struct CUstream_st *s = fk_stream(stream);
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  return reserve(s->ctx, exec) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
FK_API(cuGraphUpload_ptsz, (CUgraphExec exec, CUstream stream)) {
  return cuGraphUpload(exec, stream);
}

static CUresult launch(CUgraphExec exec, struct CUstream_st *s) {
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  if (s->capture) {
    struct CUgraphNode_st *n = fk_node_add(s->capture, CU_GRAPH_NODE_TYPE_GRAPH);
    n->work = exec->work;
    n->width = exec->width;
    return CUDA_SUCCESS;
  }
  if (!reserve(s->ctx, exec)) return CUDA_ERROR_OUT_OF_MEMORY;
  fk_push(s, exec->work, exec->width);
  return CUDA_SUCCESS;
}

FK_API(cuGraphLaunch, (CUgraphExec exec, CUstream stream)) {
  FK_ENTER("cuGraphLaunch");
  return launch(exec, fk_stream_of(stream, false));
}
FK_API(cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream)) {
  FK_ENTER("cuGraphLaunch");
  return launch(exec, fk_stream_of(stream, true));
}

FK_API(cuDeviceGraphMemTrim, (CUdevice device)) {
  CUcontext ctx = fk_current();
  (void)device;
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  fk_lock();
  fk_mem_give(ctx->gpu, ctx->queue, graph_memory[ctx->gpu].reserved);
  graph_memory[ctx->gpu].reserved = 0;
  trims++;
  fk_unlock();
  return CUDA_SUCCESS;
}

FK_API(cuDeviceGetGraphMemAttribute,
       (CUdevice device, CUgraphMem_attribute attribute, void *value)) {
  CUcontext ctx = fk_current();
  (void)attribute;
  *(uint64_t *)value = graph_memory[ctx ? ctx->gpu : device].reserved;
  return CUDA_SUCCESS;
}

/* ---- capture ---- */

static CUresult begin(struct CUstream_st *s, CUstreamCaptureMode mode, bool legacy) {
  if (legacy || !s || s->capture) return CUDA_ERROR_ILLEGAL_STATE;
  CUresult r = cuGraphCreate(&s->capture, 0);
  if (r == CUDA_SUCCESS) fk_capture_began(s, mode);
  return r;
}
FK_API(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode)) {
  return begin(fk_stream_of(stream, false), mode, !stream || stream == CU_STREAM_LEGACY);
}
FK_API(cuStreamBeginCapture_v2_ptsz, (CUstream stream, CUstreamCaptureMode mode)) {
  return begin(fk_stream_of(stream, true), mode, stream == CU_STREAM_LEGACY);
}
FK_API(cuStreamBeginCapture, (CUstream stream)) {
  return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}
static CUresult end(struct CUstream_st *s, CUgraph *out) {
  if (!s || !s->capture || s->joined) return CUDA_ERROR_ILLEGAL_STATE;
  bool invalid = s->invalid;
  *out = invalid ? NULL : s->capture;
  fk_capture_ended(s);
  return invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}
FK_API(cuStreamEndCapture, (CUstream stream, CUgraph *out)) {
  return end(fk_stream_of(stream, false), out);
}
FK_API(cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *out)) {
  return end(fk_stream_of(stream, true), out);
}
static CUresult capturing(struct CUstream_st *s, CUstreamCaptureStatus *status) {
  *status = !s || !s->capture ? CU_STREAM_CAPTURE_STATUS_NONE
            : s->invalid      ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                              : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}
FK_API(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status)) {
  return capturing(fk_stream_of(stream, false), status);
}
FK_API(cuStreamIsCapturing_ptsz, (CUstream stream, CUstreamCaptureStatus *status)) {
  return capturing(fk_stream_of(stream, true), status);
}
