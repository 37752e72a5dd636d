/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NVIDIA's documents say of memory that outlives contexts and processes, and of who waits for whom:
 *
 *   documents list     names, one a line; virtual time is needed by those that begin with "time"
 *   documents NAME     try one; ends with 0 if the driver is as documented
 *
 * The driver's own count of bytes is the fake's; the limiter, if there is one, must not change what is seen.
 */
#define _GNU_SOURCE
#include "by_name.h"
#include "program.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define MS 1000000ul

static CUcontext context;
static unsigned long (*driver_used)(int), (*gpu_now)(void);
static void (*gpu_sleep)(unsigned long);
static int bad;

static void expect(int truth, const char *what) {
  if (truth) return;
  printf("not so: %s\n", what);
  bad = 1;
}

/* The driver holds so much of the first GPU, soon: what a process leaves behind is freed as it ends. */
static void held(unsigned long mib, const char *what) {
  for (int i = 0; i < 200 && driver_used(0) != mib * MIB; i++) usleep(5000);
  if (driver_used(0) == mib * MIB) return;
  printf("%s: the driver holds %lu MiB and not %lu\n", what, driver_used(0) / MIB, mib);
  bad = 1;
}

static CUmemGenericAllocationHandle physical(unsigned long mib) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemGenericAllocationHandle handle;
  must(cuMemCreate(&handle, mib * MIB, &prop, 0), "create");
  return handle;
}

static int exported(CUmemGenericAllocationHandle handle) {
  int fd;
  must(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "export");
  return fd;
}

static CUmemGenericAllocationHandle imported(int fd) {
  CUmemGenericAllocationHandle handle;
  must(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
       "import");
  return handle;
}

static CUmemoryPool pool_of(CUmemAllocationHandleType handles) {
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                          .handleTypes = handles,
                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemoryPool pool;
  must(cuMemPoolCreate(&pool, &props), "pool");
  return pool;
}

static CUstream stream_of(unsigned flags, int priority) {
  CUstream stream;
  must(cuStreamCreateWithPriority(&stream, flags, priority), "stream");
  return stream;
}

static CUfunction of_ms(int ms) {
  char name[32];
  snprintf(name, sizeof name, "spin_%dms", ms);
  return kernel_named(name);
}

static void launch(CUfunction f, CUstream stream) {
  must(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL), "launch");
}

/* ---- another process, which holds what it makes until it is told, or killed ---- */

struct other {
  pid_t pid;
  int socket;
};

static void say(int to, int fd) {
  char room[CMSG_SPACE(sizeof fd)] = {0}, byte = 0;
  struct iovec body = {&byte, 1};
  struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1};
  if (fd >= 0) {
    m.msg_control = room;
    m.msg_controllen = sizeof room;
    *CMSG_FIRSTHDR(&m) = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd, sizeof fd);
  }
  if (sendmsg(to, &m, 0) != 1) exit(4);
}

static int hear(int from) {
  char room[CMSG_SPACE(sizeof(int))], byte;
  struct iovec body = {&byte, 1};
  struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  int fd = -1;
  if (recvmsg(from, &m, 0) != 1) exit(4);
  if (CMSG_FIRSTHDR(&m)) memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
  return fd;
}

/* Forked before this process has called the driver, as CUDA demands. */
static struct other begin(void (*go)(int socket)) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) exit(4);
  pid_t pid = fork();
  if (!pid) {
    close(pair[0]);
    go(pair[1]);
    exit(bad);
  }
  close(pair[1]);
  return (struct other){pid, pair[0]};
}

static void end(struct other o, int sig) {
  int status;
  if (sig) kill(o.pid, sig);
  waitpid(o.pid, &status, 0);
  bad |= !sig && status;
  close(o.socket);
}

/* ---- shareable handles ---- */

static void makes_and_exports(int socket) {
  context = open_gpu();
  int fd = exported(physical(100));
  say(socket, fd);
  close(fd);
  pause();
}

/* Memory is freed when all references to it are gone, its shareable handles too. */
BY_NAME(an_open_descriptor_holds_memory) {
  struct other maker = begin(makes_and_exports);
  int fd = hear(maker.socket);
  end(maker, SIGKILL);
  held(100, "its maker was killed");
  context = open_gpu();
  CUmemGenericAllocationHandle handle = imported(fd);
  close(fd);
  held(100, "it was imported, and the descriptor closed");
  must(cuMemRelease(handle), "release");
  held(0, "the import was released");
}
BY_NAME(a_descriptor_on_its_way_holds_memory) {
  struct other maker = begin(makes_and_exports);
  usleep(300000);
  end((struct other){maker.pid, dup(maker.socket)}, SIGKILL);
  held(100, "its maker was killed, and nobody has read the message");
  close(hear(maker.socket));
  held(0, "the descriptor was read and closed");
}
BY_NAME(each_export_is_a_reference) {
  context = open_gpu();
  CUmemGenericAllocationHandle handle = physical(100);
  int a = exported(handle), b = exported(handle);
  must(cuMemRelease(handle), "release");
  close(a);
  held(100, "one of two descriptors is open");
  handle = imported(b);
  close(b);
  held(100, "the maker itself imported it");
  must(cuMemRelease(handle), "release");
  held(0, "nothing is left");
}
BY_NAME(handles_must_be_asked_for) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemGenericAllocationHandle handle;
  int fd;
  context = open_gpu();
  must(cuMemCreate(&handle, 2 * MIB, &prop, 0), "create");
  expect(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS,
         "memory is exported only by a kind of handle that was asked for when it was made");
}
BY_NAME(a_range_as_a_dma_buffer_holds_memory) {
  CUdeviceptr at, plain;
  int fd, other;
  context = open_gpu();
  CUmemGenericAllocationHandle handle = physical(100);
  must(cuMemAddressReserve(&at, 100 * MIB, 0, 0, 0), "reserve");
  must(cuMemMap(at, 100 * MIB, 0, handle, 0), "map");
  must(cuMemAlloc(&plain, 10 * MIB), "plain");
  must(cuMemGetHandleForAddressRange(&fd, at, 2 * MIB, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0), "range");
  must(cuMemGetHandleForAddressRange(&other, plain, 2 * MIB, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0), "range");
  must(cuMemUnmap(at, 100 * MIB), "unmap");
  must(cuMemRelease(handle), "release");
  must(cuMemFree(plain), "free");
  held(110, "two descriptors are left");
  close(fd), close(other);
  held(0, "nothing is left");
}

static void makes_a_pool(int socket) {
  CUdeviceptr p;
  int fd;
  context = open_gpu();
  CUmemoryPool pool = pool_of(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  must(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "export");
  must(cuMemAllocFromPoolAsync(&p, 100 * MIB, pool, NULL), "allocation");
  say(socket, fd);
  pause();
}
BY_NAME(a_pool_lives_in_who_imported_it) {
  struct other maker = begin(makes_a_pool);
  CUmemoryPool pool;
  CUdeviceptr p;
  int fd = hear(maker.socket);
  context = open_gpu();
  must(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
       "import");
  close(fd);
  end(maker, SIGKILL);
  held(100, "its maker was killed");
  expect(cuMemAllocFromPoolAsync(&p, 2 * MIB, pool, NULL) != CUDA_SUCCESS, "imported pools allocate nothing");
  expect(cuDeviceSetMemPool(0, pool) != CUDA_SUCCESS, "an imported pool is not set as the device's");
  must(cuMemPoolDestroy(pool), "destroy");
  held(0, "the import was destroyed");
}

static CUipcMemHandle by_ipc;
static void offers_ipc(int socket) {
  CUdeviceptr p;
  context = open_gpu();
  must(cuMemAlloc(&p, 100 * MIB), "plain");
  must(cuIpcGetMemHandle(&by_ipc, p), "handle");
  if (write(socket, &by_ipc, sizeof by_ipc) != sizeof by_ipc) exit(4);
  pause();
}
BY_NAME(ipc_memory_lives_in_who_opened_it) {
  struct other maker = begin(offers_ipc);
  CUdeviceptr p, again;
  if (read(maker.socket, &by_ipc, sizeof by_ipc) != sizeof by_ipc) exit(4);
  context = open_gpu();
  must(cuIpcOpenMemHandle(&p, by_ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "open");
  must(cuIpcOpenMemHandle(&again, by_ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "open");
  expect(p == again, "opened again it is at the same address");
  end(maker, SIGKILL);
  held(100, "its maker was killed");
  must(cuIpcCloseMemHandle(p), "close");
  held(100, "it was opened twice");
  must(cuIpcCloseMemHandle(p), "close");
  held(0, "it was closed as often");
  expect(cuIpcOpenMemHandle(&p, by_ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS, "it is gone");
}
BY_NAME(an_ipc_handle_alone_holds_nothing) {
  struct other maker = begin(offers_ipc);
  if (read(maker.socket, &by_ipc, sizeof by_ipc) != sizeof by_ipc) exit(4);
  end(maker, SIGKILL);
  context = open_gpu();
  held(0, "its maker was killed");
}

/* ---- the driver's files, which forked children inherit ---- */

static void has_a_worker(int socket) {
  CUdeviceptr p;
  context = open_gpu();
  must(cuMemAlloc(&p, 100 * MIB), "plain");
  must(cuMemAllocAsync(&p, 50 * MIB, NULL), "from the pool");
  if (!fork()) {
    hear(socket);
    exit(0);
  }
  say(socket, -1);
  pause();
}
static void a_worker_keeps_it(int sig) {
  struct other parent = begin(has_a_worker);
  hear(parent.socket);
  end((struct other){parent.pid, dup(parent.socket)}, sig);
  held(150, "a forked worker has its files open");
  say(parent.socket, -1);
  context = open_gpu();
  held(0, "the worker has ended");
}
BY_NAME(a_worker_keeps_a_killed_parents_memory) {
  a_worker_keeps_it(SIGKILL);
}
static void leaves(int sig) {
  (void)sig;
  exit(0);
}
static void has_a_worker_and_leaves(int socket) {
  signal(SIGTERM, leaves);
  has_a_worker(socket);
}
BY_NAME(a_worker_keeps_an_exited_parents_memory) {
  struct other parent = begin(has_a_worker_and_leaves);
  hear(parent.socket);
  end((struct other){parent.pid, dup(parent.socket)}, SIGTERM);
  held(150, "a forked worker has its files open");
  say(parent.socket, -1);
  held(0, "the worker has ended");
}
static void runs_a_program(int socket) {
  CUdeviceptr p;
  context = open_gpu();
  must(cuMemAlloc(&p, 100 * MIB), "plain");
  if (!fork()) {
    execl("/bin/sleep", "sleep", "3", NULL);
    exit(4);
  }
  usleep(300000);
  say(socket, -1);
  pause();
}
BY_NAME(an_executed_program_keeps_nothing) {
  struct other parent = begin(runs_a_program);
  hear(parent.socket);
  end(parent, SIGKILL);
  held(0, "what was executed has none of its files");
}

/* ---- what a context's end frees ---- */

BY_NAME(a_contexts_end_spares_virtual_memory_and_pools) {
  CUcontext own;
  CUdeviceptr plain, at, from_pool;
  open_gpu();
  CUmemoryPool pool = pool_of(CU_MEM_HANDLE_TYPE_NONE);
  must(cuCtxCreate(&own, NULL, 0, 0), "context");
  must(cuMemAlloc(&plain, 10 * MIB), "plain");
  CUmemGenericAllocationHandle handle = physical(100);
  must(cuMemAddressReserve(&at, 100 * MIB, 0, 0, 0), "reserve");
  must(cuMemMap(at, 100 * MIB, 0, handle, 0), "map");
  must(cuMemAllocFromPoolAsync(&from_pool, 50 * MIB, pool, NULL), "from a pool");
  must(cuCtxSynchronize(), "synchronise");
  must(cuCtxDestroy(own), "destroy");
  held(150, "the context is gone");
  must(cuMemFree(from_pool), "free");
  must(cuMemPoolTrimTo(pool, 0), "trim");
  held(100, "the pool's memory was freed after its context");
  must(cuMemUnmap(at, 100 * MIB), "unmap");
  must(cuMemRelease(handle), "release");
  held(0, "nothing is left");
}

/* ---- pools by place ---- */

static CUmemLocation place(CUmemLocationType type, int id) {
  return (CUmemLocation){.type = type, .id = id};
}
BY_NAME(pools_are_their_devices) {
  CUmemLocation first = place(CU_MEM_LOCATION_TYPE_DEVICE, 0), host = place(CU_MEM_LOCATION_TYPE_HOST, 0),
                none = place(CU_MEM_LOCATION_TYPE_NONE, 0), other = place(CU_MEM_LOCATION_TYPE_DEVICE, 99);
  CUmemoryPool a, b, own;
  context = open_gpu();
  must(cuMemGetDefaultMemPool(&a, &first, CU_MEM_ALLOCATION_TYPE_PINNED), "default");
  must(cuDeviceGetDefaultMemPool(&b, 0), "default");
  expect(a == b, "the default pool of a location that is a device is the device's");
  must(cuMemGetDefaultMemPool(&b, &host, CU_MEM_ALLOCATION_TYPE_PINNED), "host");
  expect(a != b, "the host has a pool of its own");
  must(cuMemGetDefaultMemPool(&b, &first, CU_MEM_ALLOCATION_TYPE_MANAGED), "managed");
  expect(a != b, "managed memory has a pool of its own");
  must(cuMemGetDefaultMemPool(&b, &none, CU_MEM_ALLOCATION_TYPE_MANAGED), "managed, nowhere");
  expect(cuMemGetDefaultMemPool(&b, &none, CU_MEM_ALLOCATION_TYPE_PINNED) == CUDA_ERROR_INVALID_VALUE,
         "only managed memory may have no place");
  expect(cuMemGetDefaultMemPool(&b, &other, CU_MEM_ALLOCATION_TYPE_PINNED) != CUDA_SUCCESS, "there is no such device");
  own = pool_of(CU_MEM_HANDLE_TYPE_NONE);
  must(cuMemSetMemPool(&first, CU_MEM_ALLOCATION_TYPE_PINNED, own), "set");
  must(cuDeviceGetMemPool(&b, 0), "current");
  expect(b == own, "to set a device's pool by its location is to set the device's");
  expect(cuMemSetMemPool(&host, CU_MEM_ALLOCATION_TYPE_PINNED, own) == CUDA_ERROR_INVALID_VALUE, "places must match");
  expect(cuMemSetMemPool(&first, CU_MEM_ALLOCATION_TYPE_MANAGED, own) == CUDA_ERROR_INVALID_VALUE, "kinds must match");
  must(cuMemPoolDestroy(own), "destroy");
  must(cuMemGetMemPool(&b, &first, CU_MEM_ALLOCATION_TYPE_PINNED), "current");
  expect(a == b, "a destroyed pool is current no more");
}
/* On a machine with two GPUs; with a limiter the other one is refused. */
BY_NAME(two_devices_have_two_pools) {
  CUmemoryPool a, b, there;
  CUdeviceptr p;
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}};
  context = open_gpu();
  must(cuDeviceGetDefaultMemPool(&a, 0), "first");
  must(cuDeviceGetDefaultMemPool(&b, 1), "second");
  expect(a != b, "each device has its own");
  must(cuMemPoolCreate(&there, &props), "pool on the second");
  expect(cuDeviceSetMemPool(0, there) != CUDA_SUCCESS, "a device's pool is local to it");
  must(cuMemAllocFromPoolAsync(&p, 100 * MIB, there, NULL), "from the second");
  must(cuMemAllocFromPoolAsync(&p, 10 * MIB, b, NULL), "from the second's own");
  held(0, "the first holds nothing");
  expect(driver_used(1) == 110 * MIB, "the second holds what its pools have");
}

/* ---- who waits for whom, in virtual time; the kernels are loaded before ---- */

static unsigned long began;
static void start_clock(void) {
  must(cuCtxSynchronize(), "synchronise");
  began = gpu_now();
}
static void took(unsigned long ms, const char *what) {
  unsigned long gone = (gpu_now() - began + MS / 2) / MS;
  if (gone == ms) return;
  printf("%s: after %lu ms and not %lu\n", what, gone, ms);
  bad = 1;
}
static void goes_on(CUresult r, unsigned long ms, const char *what) {
  must(r, what);
  took(ms, what);
}

/* Priorities are for work that has not begun. */
BY_NAME(time_a_running_kernel_is_not_preempted) {
  context = open_gpu();
  CUfunction ten = of_ms(10), five = of_ms(5);
  CUstream low = stream_of(CU_STREAM_NON_BLOCKING, 0), high = stream_of(CU_STREAM_NON_BLOCKING, -5),
           third = stream_of(CU_STREAM_NON_BLOCKING, 0);
  start_clock();
  launch(ten, low);
  gpu_sleep(2 * MS);
  launch(ten, third);
  launch(five, high);
  goes_on(cuStreamSynchronize(low), 10, "the one that runs is finished first");
  goes_on(cuStreamSynchronize(high), 15, "then the one of high priority, though it came last");
  goes_on(cuStreamSynchronize(third), 25, "then the other one");
}
BY_NAME(time_the_legacy_stream_waits_for_blocking_ones_only) {
  context = open_gpu();
  CUfunction wide[] = {kernel_named("spin_10ms_w25"), kernel_named("spin_20ms_w25"), kernel_named("spin_5ms_w25")};
  CUstream blocking = stream_of(CU_STREAM_DEFAULT, 0), other = stream_of(CU_STREAM_NON_BLOCKING, 0);
  start_clock();
  launch(wide[0], blocking);
  launch(wide[1], other);
  launch(wide[2], NULL);
  launch(wide[2], blocking);
  goes_on(cuStreamSynchronize(NULL), 15, "behind the blocking stream");
  goes_on(cuStreamSynchronize(blocking), 20, "which then waits for it");
  goes_on(cuStreamSynchronize(other), 20, "beside the others");
}
BY_NAME(time_copies_wait_as_documented) {
  static char pageable[64];
  void *pinned;
  CUdeviceptr a, b, managed;
  context = open_gpu();
  CUfunction ten = of_ms(10);
  CUstream stream = stream_of(CU_STREAM_DEFAULT, 0), apart = stream_of(CU_STREAM_NON_BLOCKING, 0);
  must(cuMemAlloc(&a, MIB), "plain");
  must(cuMemAlloc(&b, MIB), "plain");
  must(cuMemAllocManaged(&managed, MIB, CU_MEM_ATTACH_GLOBAL), "managed");
  must(cuMemHostAlloc(&pinned, 4096, 0), "pinned");
  start_clock();
  launch(ten, apart);
  goes_on(cuMemcpyDtoH(pageable, a, 64), 0, "a copy in the legacy stream passes streams that do not block");
  goes_on(cuMemcpyDtoHAsync(pinned, a, 64, apart), 0, "a pinned copy is asynchronous");
  goes_on(cuMemcpyDtoHAsync(pageable, a, 64, apart), 10, "a pageable one is not");
  launch(ten, stream);
  goes_on(cuMemcpyDtoD(b, a, 64), 10, "within the device the host does not wait");
  goes_on(cuMemsetD8(a, 0, 64), 10, "nor for a fill");
  goes_on(cuMemcpyHtoD(a, pinned, 64), 20, "a synchronous copy waits for what blocks");
  launch(ten, stream);
  goes_on(cuMemsetD8((CUdeviceptr)(uintptr_t)pinned, 0, 64), 30, "a fill of pinned memory is synchronous");
  launch(ten, apart);
  goes_on(cuMemcpyHtoDAsync(managed, pinned, 64, apart), 40, "a copy of managed memory is too");
  must(cuMemHostRegister(pageable, 64, 0), "register");
  launch(ten, apart);
  goes_on(cuMemcpyHtoDAsync(a, pageable, 64, apart), 40, "memory that was registered is pinned");
  goes_on(cuStreamSynchronize(apart), 50, "the end");
}
BY_NAME(time_to_free_plain_memory_is_to_wait) {
  CUdeviceptr plain, from_pool;
  context = open_gpu();
  CUfunction ten = of_ms(10);
  CUstream apart = stream_of(CU_STREAM_NON_BLOCKING, 0);
  must(cuMemAlloc(&plain, MIB), "plain");
  must(cuMemAllocAsync(&from_pool, MIB, apart), "from the pool");
  start_clock();
  launch(ten, apart);
  goes_on(cuMemFree(from_pool), 0, "memory of a pool is freed at once");
  goes_on(cuMemFree(plain), 10, "plain memory is not");
}
BY_NAME(time_to_load_a_module_is_to_wait) {
  CUmodule module;
  context = open_gpu();
  CUfunction ten = of_ms(10);
  start_clock();
  launch(ten, stream_of(CU_STREAM_NON_BLOCKING, 0));
  goes_on(cuModuleLoadData(&module, "spin"), 10, "a module is loaded");
}
/* Commands of two streams do not run side by side if an allocation comes between them. */
BY_NAME(time_an_allocation_comes_between) {
  CUdeviceptr p;
  context = open_gpu();
  CUfunction half = kernel_named("spin_10ms_w25");
  CUstream a = stream_of(CU_STREAM_DEFAULT, 0), b = stream_of(CU_STREAM_DEFAULT, 0),
           c = stream_of(CU_STREAM_NON_BLOCKING, 0);
  start_clock();
  launch(half, a);
  goes_on(cuMemAlloc(&p, MIB), 0, "an allocation does not wait itself");
  launch(half, b);
  launch(half, c);
  goes_on(cuStreamSynchronize(c), 10, "a stream that does not block runs beside the first");
  goes_on(cuStreamSynchronize(b), 20, "one that does waits for it");
}

int main(int argc, char **argv) {
  const struct by_name *one = find_by_name(argc > 1 ? argv[1] : "");
  if (!one) {
    list_names();
    return 0;
  }
  *(void **)&driver_used = dlsym(RTLD_DEFAULT, "skfUsed");
  *(void **)&gpu_now = dlsym(RTLD_DEFAULT, "skfNow");
  *(void **)&gpu_sleep = dlsym(RTLD_DEFAULT, "skfSleep");
  one->go();
  return bad;
}
