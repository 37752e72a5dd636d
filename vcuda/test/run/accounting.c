/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each kind of memory costs, to the byte, from its first call to its last: after every step
 * the charge must be what we expect, and what the fake GPU itself has given out.
 *
 *   accounting all            every part below, in a seat of 1 GiB
 *   accounting open FD        the other side of the IPC part: its handles come through FD
 *   accounting orphan MIB     keep an import after its exporter let go, and wait to be killed
 *   accounting killed         hold what others exported that were killed, then let go of it
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL 1
#include "program.h"

#include <dlfcn.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ull << 20)

extern char **environ;
static unsigned long (*driver_used)(int), (*driver_peak)(int);
static size_t cap;
static int bad;

static void fails(CUresult r, const char *what) {
  if (r == CUDA_ERROR_OUT_OF_MEMORY) return;
  printf("%s: %d and not out of memory\n", what, (int)r);
  bad++;
}

/* Charge and driver must both stand at so many bytes. */
static void stand(unsigned long bytes, const char *where) {
  size_t spare, total;
  must(cuMemGetInfo_v2(&spare, &total), "info");
  unsigned long used = driver_used ? driver_used(0) : bytes;
  if (total - spare == bytes && used == bytes) return;
  printf("%s: charged %lu, the driver gave %lu, expected %lu\n", where,
         (unsigned long)(total - spare), used, bytes);
  bad++;
}

/* What was exported is charged until the arbiter has seen that no process holds it: it looks twice a
 * second, and believes the third look. */
static void stand_soon(unsigned long bytes, const char *where) {
  size_t spare, total;
  for (int i = 0; i < 500; i++) {
    must(cuMemGetInfo_v2(&spare, &total), "info");
    if (total - spare == bytes) break;
    usleep(10000);
  }
  stand(bytes, where);
}

static void set_up(void) {
  *(void **)&driver_used = dlsym(RTLD_DEFAULT, "skfUsed");
  *(void **)&driver_peak = dlsym(RTLD_DEFAULT, "skfPeak");
  open_gpu();
  must(cuDeviceTotalMem_v2(&cap, 0), "total");
}

/* ---- graphs ---- */

static void add_node(CUgraph graph, unsigned long bytes, int generic) {
  CUDA_MEM_ALLOC_NODE_PARAMS params = {
      .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
      .bytesize = bytes};
  CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
  CUgraphNode node;
  any.alloc.poolProps = params.poolProps;
  any.alloc.bytesize = bytes;
  must(generic ? cuGraphAddNode(&node, graph, NULL, 0, &any)
               : cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params),
       "node");
}

static CUgraphExec instantiate(CUgraph graph) {
  CUgraphExec exec;
  must(cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
  must(cuGraphDestroy(graph), "destroy");
  return exec;
}

static CUgraphExec graph_of(unsigned long bytes) {
  CUgraph graph;
  must(cuGraphCreate(&graph, 0), "graph");
  add_node(graph, bytes, 0);
  return instantiate(graph);
}

static CUgraphExec nested(void) {
  CUgraph graph, child;
  CUgraphNode node;
  must(cuGraphCreate(&graph, 0), "graph");
  must(cuGraphCreate(&child, 0), "graph");
  add_node(graph, 64 * MIB, 0);
  add_node(graph, 1, 1);
  add_node(child, 32 * MIB, 0);
  must(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child), "child");
  CUgraphExec exec = instantiate(graph);
  must(cuGraphDestroy(child), "destroy");
  return exec;
}

static CUgraphExec captured(unsigned long bytes) {
  CUstream stream;
  CUdeviceptr p;
  CUgraph graph;
  must(cuStreamCreate(&stream, 0), "stream");
  must(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "capture");
  must(cuMemAllocAsync(&p, bytes, stream), "captured allocation");
  must(cuStreamEndCapture(stream, &graph), "capture");
  must(cuStreamDestroy_v2(stream), "stream");
  return instantiate(graph);
}

static void graphs(void) {
  CUgraphExec a = nested(), b = captured(100 * MIB), big = graph_of(cap);
  CUgraphExec rest = graph_of(cap - 196 * MIB);
  stand(0, "graphs: instantiated");
  must(cuGraphLaunch(a, NULL), "launch");
  stand(98 * MIB, "graphs: launched");
  must(cuGraphLaunch(a, NULL), "launch");
  stand(98 * MIB, "graphs: launched again");
  must(cuGraphUpload(b, NULL), "upload");
  stand(198 * MIB, "graphs: uploaded");
  fails(cuGraphLaunch(big, NULL), "graphs: above the cap");
  fails(cuGraphUpload(rest, NULL), "graphs: 2 MiB too much");
  stand(198 * MIB, "graphs: refused");
  must(cuGraphExecDestroy(a), "destroy");
  must(cuGraphExecDestroy(b), "destroy");
  stand(198 * MIB, "graphs: destroyed, not trimmed");
  must(cuDeviceGraphMemTrim(0), "trim");
  stand(0, "graphs: trimmed");
  must(cuGraphLaunch(rest, NULL), "launch");
  stand(cap - 196 * MIB, "graphs: up to the cap");
  must(cuDeviceGraphMemTrim(0), "trim");
  must(cuGraphLaunch(rest, NULL), "launch");
  stand(cap - 196 * MIB, "graphs: launched after a trim");
  must(cuGraphExecDestroy(rest), "destroy");
  must(cuGraphExecDestroy(big), "destroy");
  must(cuDeviceGraphMemTrim(0), "trim");
  stand(0, "graphs: at the end");
}

/* ---- pools ---- */

static void pools(void) {
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemoryPool own, standard;
  CUdeviceptr p[4], plain;
  cuuint64_t keep = UINT64_MAX;
  must(cuMemPoolCreate(&own, &props), "pool");
  must(cuDeviceGetDefaultMemPool(&standard, 0), "pool");
  stand(0, "pools: made");
  must(cuMemAllocFromPoolAsync(&p[0], 1, own, NULL), "allocation");
  stand(2 * MIB, "pools: one byte");
  must(cuMemAllocFromPoolAsync_ptsz(&p[1], 1000, own, NULL), "allocation");
  stand(2 * MIB, "pools: from the same granule");
  must(cuMemAllocFromPoolAsync(&p[2], 2 * MIB, own, NULL), "allocation");
  stand(4 * MIB, "pools: one granule more");
  must(cuMemAllocAsync(&p[3], 100 * MIB, NULL), "allocation");
  stand(104 * MIB, "pools: and the device's own");
  fails(cuMemAllocFromPoolAsync(&plain, cap - 102 * MIB, own, NULL), "pools: above the cap");
  fails(cuMemAllocAsync_ptsz(&plain, cap - 102 * MIB, NULL), "pools: above the cap");
  stand(104 * MIB, "pools: refused");
  must(cuMemFreeAsync(p[2], NULL), "free");
  stand(4 * MIB + 100 * MIB, "pools: freed, kept by the pool");
  must(cuMemPoolTrimTo(own, 0), "trim");
  stand(102 * MIB, "pools: trimmed");
  must(cuMemAlloc_v2(&plain, 10 * MIB), "plain");
  must(cuMemFreeAsync_ptsz(plain, NULL), "free");
  stand(102 * MIB, "pools: plain memory freed in stream order");
  must(cuMemPoolSetAttribute(standard, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), "threshold");
  must(cuMemFreeAsync(p[3], NULL), "free");
  must(cuCtxSynchronize(), "synchronise");
  stand(102 * MIB, "pools: kept by its threshold");
  keep = 0;
  must(cuMemPoolSetAttribute(standard, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), "threshold");
  must(cuCtxSynchronize(), "synchronise");
  stand(2 * MIB, "pools: handed back when synchronised");
  must(cuMemFree_v2(p[0]), "free");
  must(cuMemPoolDestroy(own), "destroy");
  stand(2 * MIB, "pools: destroyed with memory in use");
  must(cuMemFreeAsync(p[1], NULL), "free");
  stand(0, "pools: its last memory freed");
}

/* ---- virtual memory and sparse arrays ---- */

static CUmemGenericAllocationHandle physical(unsigned long bytes) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemGenericAllocationHandle handle = 0;
  must(cuMemCreate(&handle, bytes, &prop, 0), "create");
  return handle;
}

static void vmm(void) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemGenericAllocationHandle a = physical(64 * MIB), b = physical(32 * MIB), c, d;
  CUdeviceptr at;
  must(cuMemAddressReserve(&at, 160 * MIB, 0, 0, 0), "reserve");
  stand(96 * MIB, "vmm: created");
  fails(cuMemCreate(&c, cap - 94 * MIB, &prop, 0), "vmm: above the cap");
  prop.location.type = CU_MEM_LOCATION_TYPE_HOST;
  must(cuMemCreate(&c, 2 * cap, &prop, 0), "on the host");
  stand(96 * MIB, "vmm: the host's memory does not count");
  must(cuMemRelease(c), "release");
  must(cuMemMap(at, 64 * MIB, 0, a, 0), "map");
  must(cuMemMap(at + 64 * MIB, 32 * MIB, 0, b, 0), "map");
  must(cuMemMap(at + 96 * MIB, 64 * MIB, 0, a, 0), "map");
  must(cuMemRelease(a), "release");
  must(cuMemRelease(b), "release");
  stand(96 * MIB, "vmm: released, still mapped");
  must(cuMemUnmap(at, 64 * MIB), "unmap");
  stand(96 * MIB, "vmm: mapped in another place");
  must(cuMemRetainAllocationHandle(&d, (void *)(at + 70 * MIB)), "retain");
  must(cuMemUnmap(at + 64 * MIB, 96 * MIB), "unmap");
  stand(32 * MIB, "vmm: unmapped, one retained");
  must(cuMemRelease(d), "release");
  stand(0, "vmm: at the end");
  must(cuMemAddressFree(at, 160 * MIB), "address");
}

static void map_tile(CUarray array, unsigned x, CUmemGenericAllocationHandle handle) {
  CUarrayMapInfo info = {.resourceType = CU_RESOURCE_TYPE_ARRAY,
                         .subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL,
                         .memOperationType =
                             handle ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP,
                         .memHandleType = CU_MEM_HANDLE_TYPE_GENERIC,
                         .deviceBitMask = 1};
  info.resource.array = array;
  info.subresource.sparseLevel.offsetX = x;
  info.subresource.sparseLevel.extentWidth = 256;
  info.subresource.sparseLevel.extentHeight = 256;
  info.subresource.sparseLevel.extentDepth = 1;
  info.memHandle.memHandle = handle;
  must(cuMemMapArrayAsync(&info, 1, NULL), "tile");
}

static void sparse(void) {
  CUDA_ARRAY3D_DESCRIPTOR d = {16384, 16384, 0, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_SPARSE};
  CUmemGenericAllocationHandle a = physical(2 * MIB), b = physical(4 * MIB);
  CUarray array, other;
  must(cuArray3DCreate_v2(&array, &d), "array");
  must(cuArray3DCreate_v2(&other, &d), "array");
  stand(6 * MIB, "sparse: the array itself has no memory");
  map_tile(array, 0, a);
  map_tile(array, 256, b);
  map_tile(other, 0, b);
  must(cuMemRelease(a), "release");
  must(cuMemRelease(b), "release");
  stand(6 * MIB, "sparse: released, still in tiles");
  map_tile(array, 0, 0);
  stand(4 * MIB, "sparse: one tile unmapped");
  map_tile(array, 256, 0);
  stand(4 * MIB, "sparse: in another array's tile");
  a = physical(2 * MIB);
  map_tile(other, 0, a);
  stand(2 * MIB, "sparse: another's memory in its place");
  must(cuMemRelease(a), "release");
  must(cuArrayDestroy(other), "array");
  stand(0, "sparse: destroyed with its tiles");
  must(cuArrayDestroy(array), "array");
}

/* ---- what is shared between processes ---- */

struct letter {
  CUipcMemHandle plain;
  int descriptor;
};

static void send_letter(int to, struct letter *letter) {
  char room[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec body = {&letter->plain, sizeof letter->plain};
  struct msghdr m = {
      .msg_iov = &body, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  struct cmsghdr *c = CMSG_FIRSTHDR(&m);
  *c = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
  memcpy(CMSG_DATA(c), &letter->descriptor, sizeof(int));
  if (sendmsg(to, &m, 0) < 0) exit(4);
}

static struct letter read_letter(int from) {
  char room[CMSG_SPACE(sizeof(int))];
  struct letter letter;
  struct iovec body = {&letter.plain, sizeof letter.plain};
  struct msghdr m = {
      .msg_iov = &body, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  if (recvmsg(from, &m, 0) != sizeof letter.plain) exit(4);
  memcpy(&letter.descriptor, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(int));
  return letter;
}

static CUmemGenericAllocationHandle import(int descriptor) {
  CUmemGenericAllocationHandle handle;
  must(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)descriptor,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
       "import");
  return handle;
}

/* Another process of the container: it opens and maps everything, and nothing is charged again. */
static int open_all(int socket) {
  struct letter letter = read_letter(socket);
  CUdeviceptr plain, at;
  stand(192 * MIB, "ipc: before it is opened");
  must(cuIpcOpenMemHandle_v2(&plain, letter.plain, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "open");
  CUmemGenericAllocationHandle handle = import(letter.descriptor);
  must(cuMemAddressReserve(&at, 64 * MIB, 0, 0, 0), "reserve");
  must(cuMemMap(at, 64 * MIB, 0, handle, 0), "map");
  stand(192 * MIB, "ipc: opened");
  must(cuMemUnmap(at, 64 * MIB), "unmap");
  must(cuMemRelease(handle), "release");
  must(cuIpcCloseMemHandle(plain), "close");
  stand(192 * MIB, "ipc: closed");
  return bad;
}

/* Start this program again at the other end of a socket. */
static pid_t start(char *what, int pair[2]) {
  char number[12];
  char *const arguments[] = {"accounting", what, number, NULL};
  pid_t child;
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) exit(4);
  snprintf(number, sizeof number, "%d", pair[1]);
  if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ)) exit(4);
  return child;
}

static void ipc(void) {
  int pair[2], status = 1;
  CUdeviceptr plain;
  struct letter letter;
  CUmemGenericAllocationHandle handle = physical(64 * MIB);
  must(cuMemAlloc_v2(&plain, 128 * MIB), "plain");
  must(cuIpcGetMemHandle(&letter.plain, plain), "handle");
  must(cuMemExportToShareableHandle(&letter.descriptor, handle,
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
       "export");
  pid_t child = start("open", pair);
  send_letter(pair[0], &letter);
  waitpid(child, &status, 0);
  bad += status != 0;
  stand(192 * MIB, "ipc: the other process is gone");
  must(cuMemFree_v2(plain), "free");
  must(cuMemRelease(handle), "release");
  close(pair[0]), close(pair[1]), close(letter.descriptor);
  stand_soon(0, "ipc: at the end");
}

/* An import that outlives the exporter's own handle is charged to no process: the arbiter must see it. */
static void orphan(unsigned long mib) {
  int descriptor;
  CUmemGenericAllocationHandle handle = physical(mib * MIB);
  must(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                    0),
       "export");
  import(descriptor);
  must(cuMemRelease(handle), "release");
  printf("holding\n");
  fflush(stdout);
  pause();
}

/* Export and wait to be killed. */
static void make(int socket) {
  struct letter letter = {0};
  must(cuMemExportToShareableHandle(&letter.descriptor, physical(300 * MIB),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
       "export");
  send_letter(socket, &letter);
  pause();
}

/* What lives on after its exporter's death is charged until its last importer lets go. */
static void killed(void) {
  CUmemGenericAllocationHandle handle[3];
  CUdeviceptr p;
  int pair[2];
  for (int i = 0; i < 3; i++) {
    pid_t child = start("make", pair);
    int descriptor = read_letter(pair[0]).descriptor;
    handle[i] = import(descriptor);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(descriptor), close(pair[0]), close(pair[1]);
  }
  /* At once, and when the arbiter has looked at the driver often enough to judge by that alone. */
  for (int i = 0; i < 30; i++) {
    if (cuMemAlloc_v2(&p, 200 * MIB) == CUDA_SUCCESS) bad++, printf("granted after %d looks\n", i);
    usleep(100000);
  }
  stand(900 * MIB, "killed: held by the importer");
  must(cuMemAlloc_v2(&p, 100 * MIB), "the rest");
  for (int i = 0; i < 3; i++) must(cuMemRelease(handle[i]), "release");
  stand_soon(100 * MIB, "killed: let go of");
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  set_up();
  if (!strcmp(what, "open") && argc > 2) return open_all(atoi(argv[2]));
  if (!strcmp(what, "make") && argc > 2) make(atoi(argv[2]));
  if (!strcmp(what, "killed")) {
    killed();
    return printf("{\"bad\": %d, \"peak\": %lu, \"cap\": %zu}\n", bad,
                  driver_peak ? driver_peak(0) : 0, cap) < 0;
  }
  if (!strcmp(what, "orphan") && argc > 2) orphan(strtoul(argv[2], NULL, 10));
  graphs();
  pools();
  vmm();
  sparse();
  ipc();
  unsigned long peak = driver_peak ? driver_peak(0) : 0;
  printf("{\"bad\": %d, \"peak\": %lu, \"cap\": %zu}\n", bad, peak, cap);
  return 0;
}
