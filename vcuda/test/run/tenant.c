/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that keeps a GPU busy in a given way, and says what it got.
 *
 *   tenant [--kernel-us N[,N...]] [--batch N] [--host-us N] [--sync] [--graph] [--streams N]
 *          [--one-function] [--pareto] [--tie] [--idle-sync] [--other-context] [--hold-us N] [--context-wait] [--callback-us N]
 *          [--processes N] [--seconds N] [--start-after-ms N] [--arrive]
 *
 * A step is a batch of kernels (one graph with --graph), then a synchronisation where there is host
 * work or --sync, then the host work. With --one-function all kernels are calls of one function, with
 * --pareto that take 30 us to 90 ms, half as many twice as long, and with --tie a batch ends with an event that its stream itself waits for. With --idle-sync each step also
 * synchronises a stream that has nothing to do; with --other-context the streams belong to another context
 * than the current one; with --hold-us the batch waits in its stream, behind its first kernel, until the
 * host lets go of it; with --callback-us a batch ends with a host function that takes so long. Several processes share the seat, and the first one's account is for all. Times are on
 * the GPU's clock, virtual or not.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu_clock.h"
#include "program.h"

/* So many blocks as fill the GPU: there are limiters that count them. */
#define FILLED 132 * 8, 1, 1, 256, 1, 1

#define KINDS 8
#define STREAMS 8

static struct {
  int kernels, batch, host_us, sync, graph, streams, arrive, start_ms, idle_sync, other, hold_us, processes, one, pareto, tie, context_wait, callback_us;
  double seconds;
  unsigned long us[KINDS];
  const char *width[KINDS]; /* a kernel's name may go on: 400_w20 fills a fifth of the GPU */
} o = {.kernels = 1, .batch = 1, .streams = 1, .processes = 1, .seconds = 10, .us = {200}};

static CUfunction kernel[KINDS];
static CUstream stream[STREAMS], idle;
static unsigned held;
static int which; /* of the processes */
static CUgraphExec graph;
static CUevent event;

static void options(int argc, char **argv) {
  static const struct option known[] = {
      {"kernel-us", 1, NULL, 'k'},
      {"seconds", 1, NULL, 't'},
      {"batch", 1, &o.batch, 0},
      {"host-us", 1, &o.host_us, 0},
      {"streams", 1, &o.streams, 0},
      {"start-after-ms", 1, &o.start_ms, 0},
      {"hold-us", 1, &o.hold_us, 0},
      {"callback-us", 1, &o.callback_us, 0},
      {"processes", 1, &o.processes, 0},
      {"sync", 0, &o.sync, 1},
      {"graph", 0, &o.graph, 1},
      {"arrive", 0, &o.arrive, 1},
      {"idle-sync", 0, &o.idle_sync, 1},
      {"context-wait", 0, &o.context_wait, 1},
      {"other-context", 0, &o.other, 1},
      {"one-function", 0, &o.one, 1},
      {"pareto", 0, &o.pareto, 1},
      {"tie", 0, &o.tie, 1},
      {NULL, 0, NULL, 0},
  };
  int c, index;
  while ((c = getopt_long(argc, argv, "", known, &index)) != -1) {
    char *save = NULL;
    switch (c) {
    case 0:
      if (optarg) *known[index].flag = atoi(optarg);
      break;
    case 'k':
      o.kernels = 0;
      for (char *w = strtok_r(optarg, ",", &save); w && o.kernels < KINDS;
           w = strtok_r(NULL, ",", &save))
        o.width[o.kernels] = strchr(w, '_') ? strchr(w, '_') : "",
        o.us[o.kernels++] = strtoul(w, NULL, 10);
      break;
    case 't':
      o.seconds = atof(optarg);
      break;
    default:
      exit(2);
    }
  }
  o.one |= o.pareto;
  if (o.streams < 1 || o.streams > STREAMS || o.batch < 1 || o.kernels < 1) exit(2);
}

static unsigned long any_length(void) {
  static unsigned state;
  if (!state) state = (unsigned)(which + 1) * 2654435761u;
  state = state * 1664525u + 1013904223u;
  unsigned long ns = 30000ul * 65536 / ((state >> 16) + 1);
  return ns < 90000000 ? ns : 90000000;
}

static void launch(int i) {
  unsigned long ns = o.us[i % o.kernels] * 1000;
  if (o.pareto) ns = any_length();
  void *arguments[] = {&ns};
  must(cuLaunchKernel(kernel[i % o.kernels], FILLED, 0, stream[i % o.streams], o.one ? arguments : NULL, NULL),
       "launch");
}

static void make_graph(void) {
  CUgraph g;
  must(cuStreamBeginCapture(stream[0], CU_STREAM_CAPTURE_MODE_GLOBAL), "capture");
  for (int i = 0; i < o.batch; i++)
    must(cuLaunchKernel(kernel[i % o.kernels], FILLED, 0, stream[0], NULL, NULL), "node");
  must(cuStreamEndCapture(stream[0], &g), "end of capture");
  must(cuGraphInstantiate(&graph, g, 0), "instantiate");
  must(cuGraphDestroy(g), "destroy");
}

static void set_up(void) {
  CUmodule module;
  char name[32];
  CUcontext first = open_gpu(), second;
  if (o.other) must(cuCtxCreate(&second, NULL, 0, 0), "second context");
  must(cuModuleLoadData(&module, "spin"), "module");
  for (int i = 0; i < o.kernels; i++) {
    snprintf(name, sizeof name, "spin_%luus%s", o.us[i], o.width[i] ? o.width[i] : "");
    if (o.one) strcpy(name, "spin");
    must(cuModuleGetFunction(&kernel[i], module, name), "function");
  }
  for (int i = 0; i < o.streams; i++)
    must(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING), "stream");
  must(cuStreamCreate(&idle, CU_STREAM_NON_BLOCKING), "stream");
  must(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "event");
  if (o.graph) make_graph();
  if (o.other) must(cuCtxSetCurrent(first), "context");
}

/* A stream of another context is held, and all of this one wait for it. */
static void wait_by_context(volatile unsigned *word) {
  static CUcontext other;
  static CUstream holds;
  static CUevent until;
  CUcontext own;
  must(cuCtxGetCurrent(&own), "context");
  if (!other) {
    must(cuCtxCreate(&other, NULL, 0, 0), "second context");
    must(cuStreamCreate(&holds, CU_STREAM_NON_BLOCKING), "stream");
    must(cuEventCreate(&until, CU_EVENT_DISABLE_TIMING), "event");
  }
  must(cuCtxSetCurrent(other), "context");
  must(cuStreamWaitValue32(holds, (CUdeviceptr)(unsigned long)word, 1, CU_STREAM_WAIT_VALUE_EQ), "wait for memory");
  must(cuEventRecord(until, holds), "record");
  must(cuCtxSetCurrent(own), "context");
  must(cuCtxWaitEvent(own, until), "wait");
}

static void callback(void *unused) {
  (void)unused;
  sleep_ns((unsigned long)o.callback_us * 1000);
}

static int step(int count) {
  volatile unsigned *word = &held;
  if (o.graph)
    must(cuGraphLaunch(graph, stream[0]), "graph launch");
  else
    for (int i = 0; i < o.batch; i++) {
      launch(count + i);
      if (i || !o.hold_us) continue;
      *word = 0;
      if (o.context_wait) {
        wait_by_context(word);
        continue;
      }
      must(cuStreamWaitValue32(stream[count % o.streams], (CUdeviceptr)(unsigned long)word, 1,
                               CU_STREAM_WAIT_VALUE_EQ),
           "wait for memory");
    }
  if (o.tie) {
    CUstream last = stream[(count + o.batch - 1) % o.streams];
    must(cuEventRecord(event, last), "record");
    must(cuStreamWaitEvent(last, event, 0), "wait");
  }
  if (o.callback_us)
    must(cuLaunchHostFunc(stream[(count + o.batch - 1) % o.streams], callback, NULL), "host function");
  if (o.idle_sync) must(cuStreamSynchronize(idle), "synchronise");
  if (o.hold_us) {
    sleep_ns((unsigned long)o.hold_us * 1000);
    *word = 1;
    must(cuStreamSynchronize(stream[count % o.streams]), "synchronise");
  }
  if (o.sync || o.host_us) must(cuCtxSynchronize(), "synchronise");
  sleep_ns((unsigned long)o.host_us * 1000);
  return o.batch;
}

int main(int argc, char **argv) {
  int pid[16] = {0}, mine = 0;
  options(argc, argv);
  for (int i = 1; i < o.processes && i < 16; i++) {
    pid[i] = fork();
    if (!pid[i]) {
      which = mine = i;
      break;
    }
  }
  find_fake();
  set_up();
  if (o.arrive && fake_arrive) fake_arrive();
  sleep_ns((unsigned long)o.start_ms * 1000000ul);
  unsigned long start = now_ns(), end = start + (unsigned long)(o.seconds * 1e9), at = start;
  long kernels = 0, steps = 0;
  for (; at < end; at = now_ns(), steps++) kernels += step((int)(kernels % 1000000));
  unsigned long busy = fake_busy ? fake_busy(0, o.processes > 1 ? 0 : getpid()) : 0;
  /* Virtual time runs on until the arbiter has seen a process end: none ends with work in flight, for others would
   * wait for it. */
  must(cuCtxSynchronize(), "synchronise");
  if (mine) return 0;
  /* Not in one call: virtual time would stand still meanwhile. */
  while (pid[1] && waitpid(-1, NULL, WNOHANG) >= 0) sleep_ns(1000000);
  printf("{\"wall_ns\": %lu, \"busy_ns\": %lu, \"gpu_busy_ns\": %lu, \"kernels\": %ld, \"steps\": "
         "%ld}\n",
         at - start, busy, fake_busy ? fake_busy(0, 0) : 0, kernels, steps);
  fflush(stdout);
  return 0;
}
