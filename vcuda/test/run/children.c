/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that outlives who made it, one way each, for a seat that may hold 1 GiB:
 *
 *   children list     names, one a line; what must be granted begins with "fits"
 *   children NAME     go that way, with 900 MiB each time, and say what the driver holds in the end; at the next line
 *                     of input let go of it all, and try what a new process gets
 */
#define _GNU_SOURCE
#include "abi.h"
#include "by_name.h"
#include "program.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PIECE (900 * MIB)
#define TIMES 6

static unsigned long (*driver_used)(int), (*driver_peak)(int);
static int granted, kept[TIMES];
static pid_t program, worker[TIMES];

static CUresult create(CUmemGenericAllocationHandle *handle) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  return cuMemCreate(handle, PIECE, &prop, 0);
}

static int export(CUmemGenericAllocationHandle handle) {
  int fd;
  must(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "export");
  return fd;
}

static void give(int to, int fd) {
  char room[CMSG_SPACE(sizeof fd)] = {0}, byte = 1;
  struct iovec body = {&byte, 1};
  struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  *CMSG_FIRSTHDR(&m) = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
  memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd, sizeof fd);
  if (sendmsg(to, &m, 0) != 1) exit(4);
}

/* -1 if the other side had nothing to give. */
static int take(int from) {
  char room[CMSG_SPACE(sizeof(int))], byte;
  struct iovec body = {&byte, 1};
  struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  int fd = -1;
  if (recvmsg(from, &m, 0) != 1 || !CMSG_FIRSTHDR(&m)) return -1;
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
  return fd;
}

/* A child that has the GPU for itself; what it gives stays here, and it is killed. */
static int child(void (*go)(int socket)) {
  int pair[2], status;
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) exit(4);
  pid_t pid = fork();
  if (!pid) {
    close(pair[0]);
    open_gpu();
    go(pair[1]);
    shutdown(pair[1], SHUT_WR);
    pause();
  }
  close(pair[1]);
  int fd = take(pair[0]);
  kill(pid, SIGKILL);
  waitpid(pid, &status, 0);
  close(pair[0]);
  return fd;
}

static void again_and_again(void (*go)(int socket)) {
  for (int i = 0; i < TIMES; i++) {
    kept[i] = child(go);
    granted += kept[i] >= 0;
  }
}

static void exports(int socket) {
  CUmemGenericAllocationHandle handle;
  if (create(&handle) == CUDA_SUCCESS) give(socket, export(handle));
}
BY_NAME(descriptors_of_killed_children) {
  again_and_again(exports);
}

/* Each waits as long as it takes for others to have looked. */
static void exports_slowly(int socket) {
  exports(socket);
  sleep(2);
}
BY_NAME(descriptors_of_children_that_stay_a_while) {
  again_and_again(exports_slowly);
}

/* Written before its end, its own slot says that it holds nothing. */
static void tells_nothing(void) {
  char line[512];
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps)) {
    struct vc_usage *usage = (void *)strtoul(line, NULL, 16);
    if (!strstr(line, "slicekeeper-usage")) continue;
    for (unsigned i = 0; i < VC_SLOTS; i++)
      if (atomic_load(&usage->slot[i].pid) == (uint32_t)getpid()) atomic_store(&usage->slot[i].charged, 0);
  }
  if (maps) fclose(maps);
}
static void exports_and_lies(int socket) {
  CUmemGenericAllocationHandle handle;
  if (create(&handle) != CUDA_SUCCESS) return;
  int fd = export(handle);
  tells_nothing();
  give(socket, fd);
}
/* What it holds is known once the arbiter has asked the driver. */
BY_NAME(descriptors_of_children_that_lie) {
  for (int i = 0; i < TIMES; i++) {
    kept[i] = child(exports_and_lies);
    granted += kept[i] >= 0;
    usleep(500000);
  }
}

static void exports_a_pool(int socket) {
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                          .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemoryPool pool;
  CUdeviceptr p;
  int fd;
  must(cuMemPoolCreate(&pool, &props), "pool");
  must(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "export");
  if (cuMemAllocFromPoolAsync(&p, PIECE, pool, NULL) == CUDA_SUCCESS) give(socket, fd);
}
BY_NAME(pools_of_killed_children) {
  again_and_again(exports_a_pool);
}

static void exports_a_range(int socket) {
  CUdeviceptr p;
  int fd;
  if (cuMemAlloc(&p, PIECE) != CUDA_SUCCESS) return;
  must(cuMemGetHandleForAddressRange(&fd, p, PIECE, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0), "range");
  give(socket, fd);
}
BY_NAME(dma_buffers_of_killed_children) {
  again_and_again(exports_a_range);
}

/* The worker of a data loader: it has its parent's files, and does nothing with the driver's. */
static void works(int socket) {
  close(socket), close(0), close(1), close(2);
  while (kill(program, 0) == 0) usleep(50000);
  _exit(0);
}
static int has_a_worker(void (*hold)(void)) {
  int pair[2], status;
  char byte;
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) exit(4);
  pid_t pid = fork();
  if (!pid) {
    close(pair[0]);
    open_gpu();
    hold();
    pid_t mine = fork();
    if (!mine) works(pair[1]);
    if (write(pair[1], &mine, sizeof mine) != sizeof mine) exit(4);
    pause();
  }
  close(pair[1]);
  pid_t theirs = 0;
  if (read(pair[0], &theirs, sizeof theirs) != sizeof theirs) theirs = 0;
  kill(pid, SIGKILL);
  waitpid(pid, &status, 0);
  while (read(pair[0], &byte, 1) > 0) continue;
  close(pair[0]);
  return theirs;
}
static void holds_plain_memory(void) {
  CUdeviceptr p;
  if (cuMemAlloc(&p, PIECE) != CUDA_SUCCESS) exit(0);
}
static void holds_managed_memory(void) {
  CUdeviceptr p;
  if (cuMemAllocManaged(&p, PIECE, CU_MEM_ATTACH_GLOBAL) != CUDA_SUCCESS) exit(0);
}
static void holds_virtual_memory(void) {
  CUmemGenericAllocationHandle handle;
  if (create(&handle) != CUDA_SUCCESS) exit(0);
}
static void holds_a_pools_memory(void) {
  CUdeviceptr p;
  if (cuMemAllocAsync(&p, PIECE, NULL) != CUDA_SUCCESS) exit(0);
}
static void workers(void (*hold)(void)) {
  for (int i = 0; i < TIMES; i++) {
    worker[i] = has_a_worker(hold);
    granted += worker[i] > 0;
  }
}
BY_NAME(workers_of_killed_parents) {
  workers(holds_plain_memory);
}
BY_NAME(workers_of_parents_with_managed_memory) {
  workers(holds_managed_memory);
}
BY_NAME(workers_of_parents_with_virtual_memory) {
  workers(holds_virtual_memory);
}
BY_NAME(workers_of_parents_with_pools) {
  workers(holds_a_pools_memory);
}

/* Killed by whoever reads its ID. */
BY_NAME(a_parent_that_is_killed_later) {
  int pair[2], status;
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) exit(4);
  pid_t pid = fork();
  if (!pid) {
    open_gpu();
    holds_plain_memory();
    pid_t mine = fork();
    if (!mine) works(pair[1]);
    if (write(pair[1], &mine, sizeof mine) != sizeof mine) exit(4);
    for (;;) pause();
  }
  if (read(pair[0], &worker[0], sizeof worker[0]) != sizeof worker[0]) exit(4);
  printf("%d\n", (int)pid);
  fflush(stdout);
  waitpid(pid, &status, 0);
}

/* One process that lives on: it keeps only the descriptors. */
BY_NAME(descriptors_of_ones_own) {
  int pair[2];
  if (pipe(pair)) exit(4);
  worker[0] = fork();
  if (!worker[0]) {
    CUmemGenericAllocationHandle handle;
    open_gpu();
    for (int tries = 0; tries < 60; tries++) {
      if (create(&handle) == CUDA_SUCCESS) {
        export(handle);
        must(cuMemRelease(handle), "release");
        granted++;
      }
      usleep(100000);
    }
    if (write(pair[1], &granted, sizeof granted) != sizeof granted) exit(4);
    for (;;) pause();
  }
  if (read(pair[0], &granted, sizeof granted) != sizeof granted) exit(4);
}

/* Children that end leave nothing behind: each next one has room at once. */
static void holds_and_says_so(int socket) {
  holds_plain_memory();
  give(socket, 2);
}
BY_NAME(fits_children_one_after_the_other) {
  for (int i = 0; i < TIMES; i++) {
    int fd = child(holds_and_says_so);
    granted += fd >= 0;
    if (fd >= 0) close(fd);
    kept[i] = -1;
  }
}
static void exports_for_a_moment(int socket) {
  CUmemGenericAllocationHandle handle;
  if (create(&handle) != CUDA_SUCCESS) return;
  close(export(handle));
  give(socket, 2);
}
BY_NAME(fits_children_whose_descriptors_are_closed) {
  for (int i = 0; i < TIMES; i++) {
    int fd = child(exports_for_a_moment);
    granted += fd >= 0;
    if (fd >= 0) close(fd);
    kept[i] = -1;
  }
}

static int fits_now(void) {
  int fd = child(holds_and_says_so);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

int main(int argc, char **argv) {
  const struct by_name *one = find_by_name(argc > 1 ? argv[1] : "");
  int tries = 0;
  if (!one) {
    list_names();
    return 0;
  }
  *(void **)&driver_used = dlsym(RTLD_DEFAULT, "skfUsed");
  *(void **)&driver_peak = dlsym(RTLD_DEFAULT, "skfPeak");
  for (int i = 0; i < TIMES; i++) kept[i] = -1;
  program = getpid();
  one->go();
  printf("{\"granted\": %d, \"of\": %d, \"held\": %lu, \"peak\": %lu}\n", granted, TIMES, driver_used(0),
         driver_peak(0));
  fflush(stdout);
  getchar();
  for (int i = 0; i < TIMES; i++) {
    if (kept[i] >= 0) close(kept[i]);
    if (worker[i] > 0) kill(worker[i], SIGKILL);
  }
  while (!fits_now() && tries < 100) usleep(50000), tries++;
  printf("{\"tries\": %d, \"held\": %lu}\n", tries, driver_used(0));
  return 0;
}
