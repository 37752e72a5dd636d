/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs: a list of nodes, in the order in which they were added. An executable graph is a list of
 * steps; nodes that follow each other in one context are one step.
 *
 * A conditional node goes by the value that its handle has when the graph is launched. Kernels run
 * nothing here, but the arguments of one named "loop" say how often a WHILE comes round: the handle,
 * and the number of times that the body runs (unsigned int).
 */
#define _GNU_SOURCE
#include "api.h"

#include <stdlib.h>
#include <string.h>

#define STEPS_MAX 65536

struct fk_condition {
  unsigned value;
  struct fk_condition *next;
};

static uint64_t graph_memory[FK_DEVICES]; /* it is the device's, and outlives contexts */
static unsigned trims = 1;

/* ---- graphs share what they hold until one of them changes ---- */

struct fk_nodes {
  unsigned users, count, room;
  struct CUgraphNode_st **node;
};

static CUgraph sharing(struct fk_nodes *nodes) {
  CUgraph graph = calloc(1, sizeof *graph);
  graph->nodes = nodes;
  nodes->users++;
  return graph;
}

FK_API(cuGraphCreate, (CUgraph * out, unsigned flags)) {
  (void)flags;
  *out = sharing(calloc(1, sizeof(struct fk_nodes)));
  return CUDA_SUCCESS;
}

static void let_go(struct fk_nodes *nodes) {
  if (--nodes->users) return;
  for (unsigned i = 0; i < nodes->count; i++) {
    struct CUgraphNode_st *n = nodes->node[i];
    for (unsigned k = 0; k < n->bodies; k++) cuGraphDestroy(n->body[k]);
    free(n->body);
    free(n);
  }
  free(nodes->node);
  free(nodes);
}

FK_API(cuGraphDestroy, (CUgraph graph)) {
  let_go(graph->nodes);
  for (struct fk_condition *c = graph->conditions, *next; c; c = next) {
    next = c->next;
    free(c);
  }
  free(graph);
  return CUDA_SUCCESS;
}

static struct CUgraphNode_st *append(struct fk_nodes *nodes, struct CUgraphNode_st like) {
  if (nodes->count == nodes->room) {
    nodes->room = nodes->room ? 2 * nodes->room : 16;
    nodes->node = realloc(nodes->node, nodes->room * sizeof *nodes->node);
  }
  struct CUgraphNode_st *n = malloc(sizeof *n);
  *n = like;
  return nodes->node[nodes->count++] = n;
}

/* The node's own graphs: new ones, or sharing what those of another node hold. */
static void bodies(struct CUgraphNode_st *n, unsigned count, const CUgraph *like) {
  n->bodies = count;
  n->body = calloc(count ? count : 1, sizeof *n->body);
  for (unsigned i = 0; i < count; i++)
    n->body[i] = sharing(like ? like[i]->nodes : calloc(1, sizeof(struct fk_nodes)));
}

static void become_own(CUgraph graph) {
  struct fk_nodes *shared = graph->nodes;
  if (shared->users == 1) return;
  struct fk_nodes *own = calloc(1, sizeof *own);
  for (unsigned i = 0; i < shared->count; i++) {
    struct CUgraphNode_st *n = append(own, *shared->node[i]);
    bodies(n, n->bodies, shared->node[i]->body);
  }
  own->users = 1;
  let_go(shared);
  graph->nodes = own;
}

struct CUgraphNode_st *fk_node_add(CUgraph graph, CUgraphNodeType type) {
  become_own(graph);
  return append(graph->nodes, (struct CUgraphNode_st){.type = type});
}

/* ---- nodes ---- */

static CUresult kernel_node(CUgraphNode *out, CUgraph graph, const CUDA_KERNEL_NODE_PARAMS *p) {
  CUfunction f = p->func ? p->func : (CUfunction)p->kern;
  if (!f) return CUDA_ERROR_INVALID_VALUE;
  struct CUgraphNode_st *n = fk_node_add(graph, CU_GRAPH_NODE_TYPE_KERNEL);
  n->ctx = p->ctx ? p->ctx : fk_current();
  n->function = f;
  n->work = f->from_argument && p->kernelParams ? *(uint64_t *)p->kernelParams[0] : f->fixed_ns;
  n->width = fk_width(f, (uint64_t)p->gridDimX * p->gridDimY * p->gridDimZ,
                      p->blockDimX * p->blockDimY * p->blockDimZ);
  if (!strcmp(f->name, "loop") && p->kernelParams) {
    n->condition = *(struct fk_condition **)p->kernelParams[0];
    n->times = *(unsigned *)p->kernelParams[1];
  }
  *out = n;
  return CUDA_SUCCESS;
}

FK_RESULT(cuGraphAddKernelNode_v2, (CUgraphNode * out, CUgraph graph, const CUgraphNode *after, size_t count,
           const CUDA_KERNEL_NODE_PARAMS *p),
          ((void)after, (void)count, kernel_node(out, graph, p)))

FK_API(cuGraphAddEmptyNode,
       (CUgraphNode * out, CUgraph graph, const CUgraphNode *after, size_t count)) {
  (void)after, (void)count;
  *out = fk_node_add(graph, CU_GRAPH_NODE_TYPE_EMPTY);
  return CUDA_SUCCESS;
}

/* The node holds a clone; a graph with conditional nodes cannot be a child. */
FK_API(cuGraphAddChildGraphNode,
       (CUgraphNode * out, CUgraph graph, const CUgraphNode *after, size_t count, CUgraph child)) {
  (void)after, (void)count;
  if (child->conditions) return CUDA_ERROR_NOT_SUPPORTED;
  *out = fk_node_add(graph, CU_GRAPH_NODE_TYPE_GRAPH);
  bodies(*out, 1, &child);
  return CUDA_SUCCESS;
}

FK_API(cuGraphChildGraphNodeGetGraph, (CUgraphNode node, CUgraph *out)) {
  *out = node->body[0];
  return CUDA_SUCCESS;
}

FK_API(cuGraphConditionalHandleCreate, (CUgraphConditionalHandle * out, CUgraph graph,
                                        CUcontext ctx, unsigned value, unsigned flags)) {
  (void)ctx;
  struct fk_condition *c = calloc(1, sizeof *c);
  c->value = flags & CU_GRAPH_COND_ASSIGN_DEFAULT ? value : 0;
  c->next = graph->conditions;
  graph->conditions = c;
  *out = (CUgraphConditionalHandle)(uintptr_t)c;
  return CUDA_SUCCESS;
}

static CUresult conditional_node(CUgraphNode *out, CUgraph graph, CUDA_CONDITIONAL_NODE_PARAMS *p) {
  unsigned most = p->type == CU_GRAPH_COND_TYPE_WHILE ? 1
                  : p->type == CU_GRAPH_COND_TYPE_IF  ? 2
                                                      : UINT16_MAX;
  if (!p->handle || !p->size || p->size > most) return CUDA_ERROR_INVALID_VALUE;
  struct CUgraphNode_st *n = *out = fk_node_add(graph, CU_GRAPH_NODE_TYPE_CONDITIONAL);
  n->condition = (struct fk_condition *)(uintptr_t)p->handle;
  n->choice = p->type;
  bodies(n, p->size, NULL);
  for (unsigned i = 0; i < n->bodies; i++) n->body[i]->conditional = true;
  p->phGraph_out = n->body;
  return CUDA_SUCCESS;
}

/* Only kernels, child graphs, copies and conditional nodes may lie in a conditional node. */
CUresult fk_graph_alloc(CUgraphNode *out, CUgraph graph, size_t bytes, CUdeviceptr *pointer) {
  if (graph->conditional) return CUDA_ERROR_NOT_SUPPORTED;
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

static CUresult add(CUgraphNode *out, CUgraph graph, CUgraphNodeParams *p) {
  switch (p->type) {
  case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    return fk_graph_alloc(out, graph, p->alloc.bytesize, &p->alloc.dptr);
  case CU_GRAPH_NODE_TYPE_KERNEL: {
    const CUDA_KERNEL_NODE_PARAMS_v3 *k = &p->kernel;
    CUDA_KERNEL_NODE_PARAMS kernel = {.func = k->func,
                                      .gridDimX = k->gridDimX,
                                      .gridDimY = k->gridDimY,
                                      .gridDimZ = k->gridDimZ,
                                      .blockDimX = k->blockDimX,
                                      .blockDimY = k->blockDimY,
                                      .blockDimZ = k->blockDimZ,
                                      .kernelParams = k->kernelParams,
                                      .kern = k->kern,
                                      .ctx = k->ctx};
    return kernel_node(out, graph, &kernel);
  }
  case CU_GRAPH_NODE_TYPE_GRAPH:
    return cuGraphAddChildGraphNode(out, graph, NULL, 0, p->graph.graph);
  case CU_GRAPH_NODE_TYPE_CONDITIONAL:
    return conditional_node(out, graph, &p->conditional);
  default:
    *out = fk_node_add(graph, p->type);
    return CUDA_SUCCESS;
  }
}

FK_RESULT(cuGraphAddNode, (CUgraphNode * out, CUgraph graph, const CUgraphNode *after, size_t count,
                           CUgraphNodeParams *p),
          ((void)after, (void)count, add(out, graph, p)))
FK_RESULT(cuGraphAddNode_v2, (CUgraphNode * out, CUgraph graph, const CUgraphNode *after,
                              const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *p),
          ((void)after, (void)edges, (void)count, add(out, graph, p)))

FK_API(cuGraphGetNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count)) {
  size_t room = *count;
  *count = graph->nodes->count;
  for (size_t i = 0; nodes && i < room && i < *count; i++) nodes[i] = graph->nodes->node[i];
  return CUDA_SUCCESS;
}

/* A kernel node's function and context. */
FK_API(cuGraphKernelNodeGetParams_v2, (CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *p)) {
  if (node->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
  *p = (CUDA_KERNEL_NODE_PARAMS){.kern = (CUkernel)node->function, .ctx = node->ctx};
  return CUDA_SUCCESS;
}

FK_API(cuGraphNodeGetType, (CUgraphNode node, CUgraphNodeType *type)) {
  *type = node->type;
  return CUDA_SUCCESS;
}

/* ---- executable graphs ---- */

static struct fk_step *step_of(CUgraphExec exec, CUcontext ctx) {
  struct fk_step *last = exec->steps ? &exec->step[exec->steps - 1] : NULL;
  if (last && last->ctx == ctx) return last;
  if (exec->steps == STEPS_MAX) return NULL;
  if (!(exec->steps & (exec->steps - 1))) /* full: it grows by powers of two */
    exec->step = realloc(exec->step, (exec->steps ? 2 * exec->steps : 1) * sizeof *exec->step);
  exec->step[exec->steps] = (struct fk_step){.ctx = ctx};
  return &exec->step[exec->steps++];
}

static bool unroll(CUgraphExec exec, CUgraph graph);

/* How often the body of a WHILE runs; 0 if no kernel of the body says so. */
static unsigned times(CUgraph body, const struct fk_condition *condition) {
  for (unsigned i = 0; i < body->nodes->count; i++) {
    const struct CUgraphNode_st *n = body->nodes->node[i];
    if (n->type == CU_GRAPH_NODE_TYPE_KERNEL && n->condition == condition) return n->times;
  }
  return 0;
}

static bool unroll_conditional(CUgraphExec exec, const struct CUgraphNode_st *n) {
  unsigned value = n->condition->value;
  unsigned which = n->choice == CU_GRAPH_COND_TYPE_SWITCH ? value : !value;
  if (n->choice == CU_GRAPH_COND_TYPE_WHILE && value) {
    unsigned rounds = times(n->body[0], n->condition);
    for (unsigned i = 0; i < rounds; i++)
      if (!unroll(exec, n->body[0])) return false;
    return rounds; /* else it would never end */
  }
  return which >= n->bodies || unroll(exec, n->body[which]);
}

static bool unroll_node(CUgraphExec exec, const struct CUgraphNode_st *n) {
  if (n->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) return unroll_conditional(exec, n);
  if (n->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) exec->bytes += fk_granules(n->bytes);
  for (unsigned i = 0; i < n->bodies; i++)
    if (!unroll(exec, n->body[i])) return false;
  if (!n->work) return true;
  struct fk_step *step = step_of(exec, n->ctx);
  if (!step) return false;
  step->work += n->work;
  if (n->function && n->function->local > step->local) step->local = n->function->local;
  if (n->width > step->width) step->width = n->width;
  return true;
}

static bool unroll(CUgraphExec exec, CUgraph graph) {
  for (unsigned i = 0; i < graph->nodes->count; i++)
    if (!unroll_node(exec, graph->nodes->node[i])) return false;
  return true;
}

FK_API(cuGraphExecDestroy, (CUgraphExec exec)) {
  FK_LATE;
  free(exec->step);
  free(exec->child);
  fk_gone(exec, sizeof *exec);
  return CUDA_SUCCESS;
}

FK_API(cuGraphInstantiateWithFlags, (CUgraphExec * out, CUgraph graph, unsigned long long flags)) {
  FK_ENTER("cuGraphInstantiateWithFlags");
  /* Only the form with parameters has a stream to upload in. */
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) return CUDA_ERROR_INVALID_VALUE;
  CUgraphExec exec = fk_new(sizeof *exec);
  if (!unroll(exec, graph)) {
    cuGraphExecDestroy(exec);
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  *out = exec;
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
FK_RESULT(cuGraphInstantiateWithParams_ptsz, (CUgraphExec * out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p),
          cuGraphInstantiateWithParams(out, graph, p))
FK_RESULT(cuGraphInstantiate_v2, (CUgraphExec * out, CUgraph graph, CUgraphNode *bad, char *log, size_t size),
          ((void)bad, (void)log, (void)size, cuGraphInstantiateWithFlags(out, graph, 0)))
FK_RESULT(cuGraphInstantiate, (CUgraphExec * out, CUgraph graph, CUgraphNode *bad, char *log, size_t size),
          cuGraphInstantiate_v2(out, graph, bad, log, size))

/* What a child graph's nodes allocate. */
static bool bytes_of(CUgraph graph, uint64_t *bytes) {
  CUgraphExec exec = fk_new(sizeof *exec);
  bool ok = unroll(exec, graph);
  *bytes = exec->bytes;
  cuGraphExecDestroy(exec);
  return ok;
}

struct fk_child {
  CUgraphNode node;
  uint64_t bytes;
};

/* Its memory is another; what it takes of time stays what it was. */
FK_API(cuGraphExecChildGraphNodeSetParams, (CUgraphExec exec, CUgraphNode node, CUgraph graph)) {
  FK_LATE;
  uint64_t before, after;
  unsigned i = 0;
  if (node->type != CU_GRAPH_NODE_TYPE_GRAPH) return CUDA_ERROR_INVALID_VALUE;
  if (!bytes_of(node->body[0], &before) || !bytes_of(graph, &after)) return CUDA_ERROR_NOT_SUPPORTED;
  while (i < exec->children && exec->child[i].node != node) i++;
  if (i == exec->children) {
    exec->child = realloc(exec->child, ++exec->children * sizeof *exec->child);
    exec->child[i] = (struct fk_child){node, before};
  }
  exec->bytes += after - exec->child[i].bytes;
  exec->child[i].bytes = after;
  return CUDA_SUCCESS;
}

/* Graph memory stays reserved on the device until it is trimmed. */
static bool reserve(CUcontext ctx, CUgraphExec exec) {
  fk_lock();
  uint64_t has = exec->reserved_at == trims ? exec->reserved : 0;
  uint64_t more = exec->bytes > has ? exec->bytes - has : 0;
  bool ok = !more || (fk_queue_bare(ctx->gpu) >= 0 && fk_mem_take(ctx->gpu, fk_queue_bare(ctx->gpu), more));
  if (ok && more) {
    graph_memory[ctx->gpu] += more;
    exec->reserved = exec->bytes;
    exec->reserved_at = trims;
  }
  fk_unlock();
  return ok;
}

FK_API(cuGraphUpload, (CUgraphExec exec, CUstream stream)) {
  FK_LATE;
  struct CUstream_st *s = fk_stream(stream);
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  return reserve(s->ctx, exec) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
FK_RESULT(cuGraphUpload_ptsz, (CUgraphExec exec, CUstream stream), cuGraphUpload(exec, stream))

static CUresult launch(CUgraphExec exec, struct CUstream_st *s) {
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  if (fk_capture_hold(s)) {
    for (unsigned i = 0; i < exec->steps; i++) {
      struct CUgraphNode_st *n = fk_node_add(s->capture, CU_GRAPH_NODE_TYPE_KERNEL);
      n->ctx = exec->step[i].ctx;
      n->work = exec->step[i].work;
      n->width = exec->step[i].width;
    }
    fk_capture_let_go();
    return CUDA_SUCCESS;
  }
  if (!reserve(s->ctx, exec)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!exec->steps) fk_push(s, 0, 0);
  for (unsigned i = 0; i < exec->steps; i++) {
    const struct fk_step *step = &exec->step[i];
    if (step->local && fk_local(step->ctx ? step->ctx : s->ctx, step->local)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = fk_push_in(s, step->ctx, step->work, step->width);
    if (r != CUDA_SUCCESS) return r;
  }
  return CUDA_SUCCESS;
}

FK_STREAM_API(cuGraphLaunch, (CUgraphExec exec, CUstream stream), launch(exec, s))

FK_API(cuDeviceGraphMemTrim, (CUdevice device)) {
  FK_LATE;
  int gpu = fk_gpu_of_device(device);
  if (gpu < 0) return CUDA_ERROR_INVALID_DEVICE;
  fk_lock();
  if (graph_memory[gpu]) fk_mem_give(gpu, fk_queue_bare(gpu), graph_memory[gpu]);
  graph_memory[gpu] = 0;
  trims++;
  fk_unlock();
  return CUDA_SUCCESS;
}

FK_API(cuDeviceGetGraphMemAttribute,
       (CUdevice device, CUgraphMem_attribute attribute, void *value)) {
  int gpu = fk_gpu_of_device(device);
  (void)attribute;
  if (gpu < 0) return CUDA_ERROR_INVALID_DEVICE;
  fk_lock();
  *(uint64_t *)value = graph_memory[gpu];
  fk_unlock();
  return CUDA_SUCCESS;
}
