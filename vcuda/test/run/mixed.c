/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tenant that does a bit of everything, by chance but the same for the same seed:
 *
 *   mixed --seed N [--seconds N] [--pauses] [--most-us N]
 *
 * It goes from phase to phase: kernels of 10 us to 100 ms, of one length, of two in turn or of any, by
 * name or by argument, wide or narrow, on up to four streams of either of two contexts, single or in
 * graphs with children, loops and kernels of both contexts, with events between streams, host functions
 * and waits on memory, and synchronised seldom or often. With --pauses it also rests on the CPU, for up to 300 ms at a time;
 * without, it wants the GPU all the time.
 */
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>

#include "gpu_clock.h"
#include "program.h"

#define STREAMS 4
#define NAMED 9
#define GRAPH_US 12000 /* of each of the up to eight kernels in a graph */

static const unsigned named_us[NAMED] = {10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000};

struct place {
  CUcontext context;
  CUfunction named[NAMED], narrow, spin, loop;
  CUstream stream[STREAMS + 1]; /* the last one is the default stream */
  CUevent event;
};

static struct place places[2];
static unsigned state = 1, most_us = 100000;
static int pauses;
static long launches;
static unsigned flag[1 << 20], flags; /* each is used once */

static unsigned chance(unsigned below) {
  state = state * 1664525u + 1013904223u;
  return (state >> 8) % below;
}

/* Even on a scale of lengths, so that each size of kernel takes a like part of the phases. */
static unsigned length(void) {
  unsigned us = named_us[chance(NAMED)];
  us += chance(us * 2);
  return us < most_us ? us : most_us;
}

static void set_up(struct place *p, CUcontext context) {
  CUmodule module;
  char name[32];
  p->context = context;
  must(cuCtxSetCurrent(context), "context");
  must(cuModuleLoadData(&module, "kernels"), "module");
  for (int i = 0; i < NAMED; i++) {
    snprintf(name, sizeof name, "spin_%uus", named_us[i] < most_us ? named_us[i] : most_us);
    must(cuModuleGetFunction(&p->named[i], module, name), "function");
  }
  must(cuModuleGetFunction(&p->narrow, module, "spin_200us_w25"), "function");
  must(cuModuleGetFunction(&p->spin, module, "spin"), "function");
  must(cuModuleGetFunction(&p->loop, module, "loop"), "function");
  for (int i = 0; i < STREAMS; i++)
    must(cuStreamCreate(&p->stream[i], i % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT), "stream");
  must(cuEventCreate(&p->event, CU_EVENT_DISABLE_TIMING), "event");
}

static void launch(CUfunction f, CUstream stream, unsigned us) {
  unsigned long ns = us * 1000ul;
  void *arguments[] = {&ns};
  must(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, arguments, NULL), "launch");
  launches++;
}

static CUgraph capture(struct place *p, CUfunction f, unsigned us, int count) {
  CUgraph graph;
  must(cuCtxSetCurrent(p->context), "context");
  must(cuStreamBeginCapture(p->stream[0], CU_STREAM_CAPTURE_MODE_GLOBAL), "capture");
  for (int i = 0; i < count; i++) launch(f, p->stream[0], us);
  must(cuStreamEndCapture(p->stream[0], &graph), "end of capture");
  return graph;
}

static void add_child(CUgraph graph, CUgraph child) {
  CUgraphNode node;
  must(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child), "child");
  must(cuGraphDestroy(child), "destroy");
}

/* A loop whose body is one kernel, and the one that counts. */
static void add_loop(CUgraph graph, struct place *p, CUfunction f, unsigned us, unsigned count) {
  CUgraphNodeParams c = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
  CUgraphNode node;
  unsigned long ns = us * 1000ul;
  must(cuGraphConditionalHandleCreate(&c.conditional.handle, graph, p->context, 1,
                                      CU_GRAPH_COND_ASSIGN_DEFAULT),
       "handle");
  c.conditional.type = CU_GRAPH_COND_TYPE_WHILE;
  c.conditional.size = 1;
  c.conditional.ctx = p->context;
  must(cuGraphAddNode(&node, graph, NULL, NULL, 0, &c), "conditional");
  void *arguments[] = {&ns}, *counted[] = {&c.conditional.handle, &count};
  CUDA_KERNEL_NODE_PARAMS kernel = {
      .func = f, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1,
      .blockDimZ = 1, .kernelParams = arguments, .ctx = p->context};
  must(cuGraphAddKernelNode(&node, c.conditional.phGraph_out[0], NULL, 0, &kernel), "kernel");
  kernel.func = p->loop;
  kernel.kernelParams = counted;
  must(cuGraphAddKernelNode(&node, c.conditional.phGraph_out[0], NULL, 0, &kernel), "loop");
}

/* Kernels in a child graph, in a loop, or of both contexts. */
static CUgraphExec make_graph(struct place *p, CUfunction f, unsigned us, int count) {
  struct place *other = &places[p == &places[0]];
  CUgraph graph;
  CUgraphExec exec;
  must(cuGraphCreate(&graph, 0), "graph");
  switch (chance(3)) {
  case 0:
    add_child(graph, capture(p, f, us, count));
    break;
  case 1:
    add_loop(graph, p, f, us, (unsigned)count);
    break;
  default:
    add_child(graph, capture(p, f, us, (count + 1) / 2));
    add_child(graph, capture(other, other->spin, us, count / 2));
  }
  must(cuCtxSetCurrent(p->context), "context");
  must(cuGraphInstantiate(&exec, graph, 0), "instantiate");
  must(cuGraphDestroy(graph), "destroy");
  return exec;
}

static void let_go(void *word) {
  *(volatile unsigned *)word = 1;
}

/* One stream waits for another, for a host function or for memory. */
static void tie(struct place *p, CUstream a, CUstream b) {
  unsigned *word = &flag[flags++ % (1 << 20)];
  switch (chance(3)) {
  case 0:
    must(cuEventRecord(p->event, a), "record");
    must(cuStreamWaitEvent(b, p->event, 0), "wait");
    break;
  case 1:
    must(cuLaunchHostFunc(a, let_go, word), "host function");
    break;
  default:
    must(cuLaunchHostFunc(a, let_go, word), "host function");
    if (a != b)
      must(cuStreamWaitValue32(b, (CUdeviceptr)(unsigned long)word, 1, CU_STREAM_WAIT_VALUE_EQ),
           "wait for memory");
  }
}

static void phase(unsigned long until) {
  struct place *p = &places[chance(4) == 0];
  unsigned one = length(), two = length(), pattern = chance(4), streams = 1 + chance(STREAMS + 1);
  unsigned sync = chance(4), by_name = chance(2), name = chance(NAMED), narrow = chance(6) == 0;
  unsigned ties = chance(3) == 0 ? 4 + chance(8) : 0;
  unsigned rest = pauses && chance(2) ? chance(300000) : 0;
  unsigned long work = 0;
  int graphs = chance(4) == 0, count = 1 + (int)chance(8);
  CUgraphExec exec = NULL;
  must(cuCtxSetCurrent(p->context), "context");
  CUfunction f = narrow ? p->narrow : by_name ? p->named[name] : p->spin;
  /* A graph is one launch: it takes no longer than the longest kernel. */
  if (graphs)
    exec = make_graph(p, by_name && named_us[name] > GRAPH_US ? p->spin : f,
                      one < GRAPH_US ? one : GRAPH_US, count);
  for (unsigned i = 0; fake_now() < until; i++) {
    CUstream stream = p->stream[(streams + i) % streams];
    unsigned us = pattern == 0 ? one : pattern == 1 ? (i % 2 ? one : two) : pattern == 2 ? length()
                  : i % 8 == 7                                                          ? two
                                                                                        : one;
    if (exec && i % 2)
      must(cuGraphLaunch(exec, stream), "graph");
    else
      launch(f, stream, us);
    work += us;
    if (ties && i % ties == 0) tie(p, stream, p->stream[i % 2]);
    if (sync == 1 || (sync == 2 && i % 8 == 7)) must(cuStreamSynchronize(stream), "synchronise");
    if (sync == 3 && i % 16 == 15) must(cuCtxSynchronize(), "synchronise");
    if (rest && work > rest) {
      if (chance(2)) must(cuCtxSynchronize(), "synchronise");
      fake_sleep(rest * 1000ul);
      work = 0;
    }
  }
  if (exec) must(cuGraphExecDestroy(exec), "destroy");
}

int main(int argc, char **argv) {
  double seconds = 10;
  CUdevice device = 0;
  CUcontext second;
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--seed")) state = (unsigned)atoi(argv[++i]) * 2654435761u;
    if (!strcmp(argv[i], "--seconds")) seconds = atof(argv[++i]);
    if (!strcmp(argv[i], "--most-us")) most_us = (unsigned)atoi(argv[++i]);
    if (!strcmp(argv[i], "--pauses")) pauses = 1;
  }
  find_fake();
  set_up(&places[0], open_gpu());
  must(cuCtxCreate(&second, NULL, 0, device), "second context");
  set_up(&places[1], second);
  fake_arrive();
  unsigned long start = fake_now(), end = start + (unsigned long)(seconds * 1e9);
  while (fake_now() < end) {
    unsigned long until = fake_now() + (100 + chance(900)) * 1000000ul;
    phase(until < end ? until : end);
  }
  unsigned long at = fake_now(), busy = fake_busy(0, getpid());
  printf("{\"wall_ns\": %lu, \"busy_ns\": %lu, \"gpu_busy_ns\": %lu, \"kernels\": %ld, \"steps\": 0}\n",
         at - start, busy, fake_busy(0, 0), launches);
  fflush(stdout);
  return 0;
}
