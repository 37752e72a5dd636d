/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long graphs take on the fake GPU, in microseconds, one line each: what CUDA's documents say of
 * clones, conditional nodes and nodes of another context.
 */
#include "program.h"

static CUcontext context, second;
static CUfunction spin, loop;
static CUstream stream;

static void add_kernel(CUgraph graph, CUcontext where, unsigned long us) {
  CUgraphNode node;
  unsigned long ns = us * 1000;
  void *arguments[] = {&ns};
  CUDA_KERNEL_NODE_PARAMS p = {.func = spin, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
                               .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1,
                               .kernelParams = arguments, .ctx = where};
  must(cuGraphAddKernelNode(&node, graph, NULL, 0, &p), "kernel node");
}

static void add_count(CUgraph graph, CUgraphConditionalHandle handle, unsigned times) {
  CUgraphNode node;
  void *arguments[] = {&handle, &times};
  CUDA_KERNEL_NODE_PARAMS p = {.func = loop, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
                               .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1,
                               .kernelParams = arguments};
  must(cuGraphAddKernelNode(&node, graph, NULL, 0, &p), "counting node");
}

static CUgraph *add_conditional(CUgraph graph, CUgraphConditionalNodeType type, unsigned size,
                                unsigned value, CUgraphConditionalHandle *handle) {
  CUgraphNode node;
  CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
  must(cuGraphConditionalHandleCreate(handle, graph, context, value, CU_GRAPH_COND_ASSIGN_DEFAULT),
       "handle");
  p.conditional.handle = *handle;
  p.conditional.type = type;
  p.conditional.size = size;
  p.conditional.ctx = context;
  must(cuGraphAddNode(&node, graph, NULL, NULL, 0, &p), "conditional node");
  return p.conditional.phGraph_out;
}

static CUgraph empty(void) {
  CUgraph graph;
  must(cuGraphCreate(&graph, 0), "graph");
  return graph;
}

static void say(const char *name, CUgraph graph) {
  CUgraphExec exec;
  CUevent begin, end;
  float ms;
  must(cuGraphInstantiate(&exec, graph, 0), "instantiate");
  must(cuGraphDestroy(graph), "destroy");
  must(cuEventCreate(&begin, 0), "event");
  must(cuEventCreate(&end, 0), "event");
  must(cuEventRecord(begin, stream), "record");
  must(cuGraphLaunch(exec, stream), "launch");
  must(cuEventRecord(end, stream), "record");
  must(cuStreamSynchronize(stream), "synchronise");
  must(cuEventElapsedTime(&ms, begin, end), "time");
  printf("%s %.0f\n", name, ms * 1000);
}

static void child(void) {
  CUgraph graph = empty(), inner = empty();
  CUgraphNode node;
  add_kernel(inner, NULL, 100);
  must(cuGraphAddChildGraphNode(&node, graph, NULL, 0, inner), "child");
  add_kernel(inner, NULL, 5000); /* the node holds a clone */
  must(cuGraphDestroy(inner), "destroy");
  say("child", graph);
}

static void conditional(const char *name, CUgraphConditionalNodeType type, unsigned size,
                        unsigned value) {
  CUgraph graph = empty();
  CUgraphConditionalHandle handle;
  CUgraph *body = add_conditional(graph, type, size, value, &handle);
  for (unsigned i = 0; i < size; i++) add_kernel(body[i], NULL, 100 * (i + 1));
  if (type == CU_GRAPH_COND_TYPE_WHILE) add_count(body[0], handle, 7);
  add_kernel(graph, NULL, 1000);
  say(name, graph);
}

static void nested(void) {
  CUgraph graph = empty();
  CUgraphConditionalHandle outer, inner;
  CUgraph *rounds = add_conditional(graph, CU_GRAPH_COND_TYPE_WHILE, 1, 1, &outer);
  add_count(rounds[0], outer, 3);
  CUgraph *branch = add_conditional(rounds[0], CU_GRAPH_COND_TYPE_IF, 1, 1, &inner);
  add_kernel(branch[0], NULL, 200);
  say("nested", graph);
}

static void across(void) {
  CUgraph graph = empty();
  add_kernel(graph, context, 300);
  add_kernel(graph, second, 400);
  add_kernel(graph, context, 500);
  say("across", graph);
}

static void refused(void) {
  CUgraph graph = empty(), outer = empty();
  CUgraphConditionalHandle handle;
  CUgraphNode node;
  CUgraphExec exec;
  CUDA_MEM_ALLOC_NODE_PARAMS alloc = {.bytesize = 1 << 20};
  CUgraph *body = add_conditional(graph, CU_GRAPH_COND_TYPE_WHILE, 1, 1, &handle);
  printf("refused %d %d %d\n", (int)cuGraphAddChildGraphNode(&node, outer, NULL, 0, graph),
         (int)cuGraphAddMemAllocNode(&node, body[0], NULL, 0, &alloc),
         (int)cuGraphInstantiate(&exec, graph, 0)); /* nothing ends the loop */
}

int main(void) {
  CUmodule module;
  context = open_gpu();
  must(cuCtxCreate(&second, NULL, 0, 0), "second context");
  must(cuCtxSetCurrent(context), "context");
  must(cuModuleLoadData(&module, "kernels"), "module");
  must(cuModuleGetFunction(&spin, module, "spin"), "function");
  must(cuModuleGetFunction(&loop, module, "loop"), "function");
  must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "stream");
  child();
  conditional("if", CU_GRAPH_COND_TYPE_IF, 1, 1);
  conditional("if-not", CU_GRAPH_COND_TYPE_IF, 1, 0);
  conditional("else", CU_GRAPH_COND_TYPE_IF, 2, 0);
  conditional("while", CU_GRAPH_COND_TYPE_WHILE, 1, 1);
  conditional("while-not", CU_GRAPH_COND_TYPE_WHILE, 1, 0);
  conditional("switch", CU_GRAPH_COND_TYPE_SWITCH, 5, 3);
  conditional("switch-none", CU_GRAPH_COND_TYPE_SWITCH, 5, 5);
  nested();
  across();
  refused();
  return 0;
}
