/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ways by which a program could come to hold more of the device than its cap, and ways by which it
 * could be refused what it may have.
 *
 *   ways list          names, one a line; those that must be refused nothing begin with "fits"
 *   ways NAME          try one; prints what was granted of what was tried, and the driver's peak
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL 1
#include "by_name.h"
#include "program.h"

#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ull << 20)

static CUcontext context;
static CUdevice device;
static size_t cap;
static int tried, granted;

static int got(CUresult r) {
  tried++;
  granted += r == CUDA_SUCCESS;
  if (r != CUDA_SUCCESS && r != CUDA_ERROR_OUT_OF_MEMORY) printf("answer %d\n", (int)r);
  return r == CUDA_SUCCESS;
}

static bool take(size_t bytes) {
  CUdeviceptr p;
  return got(cuMemAlloc_v2(&p, bytes));
}
static bool take_in_order(size_t bytes) {
  CUdeviceptr p;
  return got(cuMemAllocAsync(&p, bytes, NULL));
}
static bool take_from(CUmemoryPool pool, size_t bytes) {
  CUdeviceptr p;
  return got(cuMemAllocFromPoolAsync(&p, bytes, pool, NULL));
}

/* What must be granted, and stays held. */
static void hold(size_t bytes) {
  CUdeviceptr p;
  must(cuMemAlloc_v2(&p, bytes), "plain");
}

/* Take all that can be had. */
static void fill(void) {
  CUdeviceptr p;
  for (size_t piece = 64 * MIB; piece >= 2 * MIB; piece /= 2)
    while (cuMemAlloc_v2(&p, piece) == CUDA_SUCCESS) continue;
}

static CUmemPoolProps on(CUmemLocationType type) {
  return (CUmemPoolProps){.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = type}};
}

static CUmemoryPool pool_on(CUmemLocationType type) {
  CUmemPoolProps props = on(type);
  CUmemoryPool pool;
  must(cuMemPoolCreate(&pool, &props), "pool");
  return pool;
}

static void start(pthread_t *threads, int count, void *(*run)(void *), void *argument) {
  for (int i = 0; i < count; i++) pthread_create(&threads[i], NULL, run, argument);
}
static void join(const pthread_t *threads, int count) {
  for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
}
static void in_threads(int count, void *(*run)(void *), void *argument) {
  pthread_t threads[8];
  start(threads, count, run, argument);
  join(threads, count);
}

static CUlibrary library_of(const char *text) {
  CUlibrary library;
  must(cuLibraryLoadData(&library, text, NULL, NULL, 0, NULL, NULL, 0), "library");
  return library;
}
static bool load_library(CUlibrary *out, const void *image) {
  return got(cuLibraryLoadData(out, image, NULL, NULL, 0, NULL, NULL, 0));
}
static CUfunction kernel_of(CUlibrary library, const char *name) {
  CUkernel k;
  must(cuLibraryGetKernel(&k, library, name), "kernel");
  return (CUfunction)k;
}
static void run(CUfunction f) {
  got(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}
static bool open_context(void) {
  CUcontext c;
  return got(cuCtxCreate_v2(&c, 0, device));
}

/* ---- pools ---- */

BY_NAME(pool_destroyed_in_use) {
  for (int i = 0; i < 8; i++) {
    CUmemoryPool pool = pool_on(CU_MEM_LOCATION_TYPE_DEVICE);
    take_from(pool, 300 * MIB);
    must(cuMemPoolDestroy(pool), "destroy");
  }
  fill();
}
BY_NAME(pool_destroyed_while_current) {
  for (int i = 0; i < 4; i++) {
    CUmemoryPool pool = pool_on(CU_MEM_LOCATION_TYPE_DEVICE);
    must(cuDeviceSetMemPool(device, pool), "current");
    take_in_order(300 * MIB);
    must(cuMemPoolDestroy(pool), "destroy");
  }
  take_in_order(100 * MIB);
  fill();
}
BY_NAME(default_pool_destroyed) {
  CUmemoryPool pool;
  must(cuDeviceGetDefaultMemPool(&pool, device), "pool");
  take_in_order(500 * MIB);
  if (cuMemPoolDestroy(pool) == CUDA_SUCCESS) printf("the default pool was destroyed\n");
  take_in_order(600 * MIB);
  fill();
}
BY_NAME(many_pools) {
  for (int i = 0; i < 100; i++) take_from(pool_on(CU_MEM_LOCATION_TYPE_DEVICE), 20 * MIB);
}
BY_NAME(pool_by_bytes) {
  for (int i = 0; i < 3000; i++) take_in_order(MIB - 511);
  fill();
}
BY_NAME(pool_kept_by_threshold) {
  CUmemoryPool pool = pool_on(CU_MEM_LOCATION_TYPE_DEVICE);
  cuuint64_t keep = UINT64_MAX;
  CUdeviceptr p;
  must(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), "threshold");
  got(cuMemAllocFromPoolAsync(&p, 900 * MIB, pool, NULL));
  must(cuMemFreeAsync(p, NULL), "free");
  must(cuCtxSynchronize(), "synchronise");
  fill();
}
static void *pool_thread(void *pool) {
  CUdeviceptr p;
  must(cuCtxSetCurrent(context), "context");
  for (int i = 0; i < 200; i++)
    if (cuMemAllocFromPoolAsync(&p, 3 * MIB, pool, NULL) == CUDA_SUCCESS && i % 2)
      cuMemFreeAsync(p, NULL);
  return NULL;
}
BY_NAME(pool_by_threads) {
  CUmemoryPool pool;
  must(cuDeviceGetDefaultMemPool(&pool, device), "pool");
  in_threads(8, pool_thread, pool);
  fill();
}

/* ---- graphs ---- */

static CUgraph with_node(unsigned long bytes) {
  CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = on(CU_MEM_LOCATION_TYPE_DEVICE),
                                       .bytesize = bytes};
  CUgraph graph;
  CUgraphNode node;
  must(cuGraphCreate(&graph, 0), "graph");
  must(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), "node");
  return graph;
}
static CUgraph nested(int depth, unsigned long bytes) {
  CUgraph inner = with_node(bytes);
  for (int i = 0; i < depth; i++) {
    CUgraph outer;
    CUgraphNode node;
    must(cuGraphCreate(&outer, 0), "graph");
    must(cuGraphAddChildGraphNode(&node, outer, NULL, 0, inner), "child");
    inner = outer;
  }
  return inner;
}
static void launch(CUgraph graph) {
  CUgraphExec exec;
  must(cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
  got(cuGraphLaunch(exec, NULL));
}
BY_NAME(graph_below_children) {
  for (int depth = 15; depth < 21; depth++) launch(nested(depth, 300 * MIB));
  fill();
}
static void *deep_thread(void *unused) {
  must(cuCtxSetCurrent(context), "context");
  for (int i = 0; i < 5; i++) launch(nested(2000, 300 * MIB));
  return unused;
}
BY_NAME(graph_very_deep) {
  in_threads(1, deep_thread, NULL);
  fill();
}
BY_NAME(graph_uploaded_at_once) {
  for (int i = 0; i < 5; i++) {
    CUDA_GRAPH_INSTANTIATE_PARAMS p = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD};
    CUgraphExec exec;
    got(cuGraphInstantiateWithParams(&exec, with_node(300 * MIB), &p));
  }
  fill();
}
/* What is done with no module must not touch what belongs to none. */
BY_NAME(graph_after_a_module_in_vain) {
  CUgraphExec exec;
  must(cuGraphInstantiateWithFlags(&exec, with_node(600 * MIB), 0), "instantiate");
  got(cuGraphLaunch(exec, NULL));
  must(cuDeviceGraphMemTrim(device), "trim");
  if (cuModuleUnload(NULL) == CUDA_SUCCESS || cuLibraryUnload(NULL) == CUDA_SUCCESS) printf("none was unloaded\n");
  fill();
  got(cuGraphLaunch(exec, NULL));
}
BY_NAME(graph_after_trim) {
  CUgraphExec exec;
  must(cuGraphInstantiateWithFlags(&exec, with_node(600 * MIB), 0), "instantiate");
  got(cuGraphLaunch(exec, NULL));
  must(cuDeviceGraphMemTrim(device), "trim");
  fill();
  got(cuGraphLaunch(exec, NULL));
}
/* A child graph that is changed, again and again, for one that needs as much. */
BY_NAME(fits_child_graph_changed_often) {
  CUgraph outer, child = with_node(200 * MIB);
  CUgraphNode node;
  CUgraphExec exec;
  must(cuGraphCreate(&outer, 0), "graph");
  must(cuGraphAddChildGraphNode(&node, outer, NULL, 0, child), "child");
  must(cuGraphInstantiateWithFlags(&exec, outer, 0), "instantiate");
  got(cuGraphLaunch(exec, NULL));
  for (int i = 0; i < 20; i++) {
    must(cuGraphExecChildGraphNodeSetParams(exec, node, child), "change");
    got(cuGraphLaunch(exec, NULL));
  }
}
/* And for ones that need more, in several places. */
BY_NAME(child_graphs_grow) {
  CUgraph outer;
  CUgraphNode node[3];
  CUgraphExec exec;
  must(cuGraphCreate(&outer, 0), "graph");
  for (int i = 0; i < 3; i++) must(cuGraphAddChildGraphNode(&node[i], outer, NULL, 0, with_node(2 * MIB)), "child");
  must(cuGraphInstantiateWithFlags(&exec, outer, 0), "instantiate");
  for (int i = 1; i < 30; i++) {
    must(cuGraphExecChildGraphNodeSetParams(exec, node[i % 3], with_node(i * 20 * MIB)), "change");
    got(cuGraphLaunch(exec, NULL));
    if (i % 7 == 0) must(cuDeviceGraphMemTrim(device), "trim");
  }
  must(cuGraphExecDestroy(exec), "destroy");
  fill();
}
static void *graph_thread(void *unused) {
  must(cuCtxSetCurrent(context), "context");
  for (int i = 0; i < 4; i++) {
    CUgraphExec exec;
    must(cuGraphInstantiateWithFlags(&exec, with_node(90 * MIB), 0), "instantiate");
    cuGraphLaunch(exec, NULL);
  }
  return unused;
}
BY_NAME(graph_by_threads) {
  in_threads(8, graph_thread, NULL);
  fill();
}

/* ---- virtual memory ---- */

static CUresult make(CUmemGenericAllocationHandle *out, unsigned long bytes) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  return cuMemCreate(out, bytes, &prop, 0);
}
BY_NAME(export_import_release) {
  CUmemGenericAllocationHandle a, b;
  int fd;
  for (int i = 0; i < 8; i++) {
    if (!got(make(&a, 300 * MIB))) continue;
    must(cuMemExportToShareableHandle(&fd, a, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
         "export");
    must(cuMemImportFromShareableHandle(&b, (void *)(intptr_t)fd,
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
         "import");
    must(cuMemRelease(a), "release");
    close(fd);
  }
  fill();
}
BY_NAME(released_but_mapped) {
  CUmemGenericAllocationHandle a;
  CUdeviceptr at;
  must(cuMemAddressReserve(&at, 4096 * MIB, 0, 0, 0), "reserve");
  for (int i = 0; i < 8; i++) {
    if (!got(make(&a, 300 * MIB))) continue;
    must(cuMemMap(at + (CUdeviceptr)i * 300 * MIB, 300 * MIB, 0, a, 0), "map");
    must(cuMemRelease(a), "release");
  }
  fill();
}
BY_NAME(retained_and_unmapped) {
  CUmemGenericAllocationHandle a, b;
  CUdeviceptr at;
  must(cuMemAddressReserve(&at, 300 * MIB, 0, 0, 0), "reserve");
  for (int i = 0; i < 8; i++) {
    if (!got(make(&a, 300 * MIB))) continue;
    must(cuMemMap(at, 300 * MIB, 0, a, 0), "map");
    must(cuMemRetainAllocationHandle(&b, (void *)(at + 12345)), "retain");
    must(cuMemRelease(a), "release");
    must(cuMemUnmap(at, 300 * MIB), "unmap");
  }
  fill();
}
BY_NAME(unmapped_in_vain) {
  CUmemGenericAllocationHandle a;
  CUdeviceptr at;
  must(cuMemAddressReserve(&at, 600 * MIB, 0, 0, 0), "reserve");
  got(make(&a, 600 * MIB));
  must(cuMemMap(at, 600 * MIB, 0, a, 0), "map");
  must(cuMemRelease(a), "release");
  if (cuMemUnmap(at + 2 * MIB, 4 * MIB) == CUDA_SUCCESS) printf("a part was unmapped\n");
  fill();
}

/* ---- contexts, modules, stacks, heap ---- */

BY_NAME(contexts) {
  for (int i = 0; i < 8; i++) open_context();
  fill();
}
BY_NAME(contexts_when_full) {
  fill();
  for (int i = 0; i < 8; i++) open_context();
}
BY_NAME(context_of_a_child) {
  fill();
  for (int i = 0; i < 3; i++) {
    pid_t child = fork();
    if (!child) {
      CUcontext c;
      cuInit(0);
      if (cuCtxCreate_v2(&c, 0, 0) == CUDA_SUCCESS) fill();
      _exit(0);
    }
    waitpid(child, NULL, 0);
  }
}
static void load_each(const void *image) {
  CUmodule module;
  CUfunction f;
  for (int i = 0; i < 8; i++)
    if (got(cuModuleLoadData(&module, image))) got(cuModuleGetFunction(&f, module, "spin_1us"));
  fill();
}
static void load_each_library(const void *image) {
  CUlibrary library;
  CUkernel kernel;
  for (int i = 0; i < 8; i++)
    if (load_library(&library, image)) got(cuLibraryGetKernel(&kernel, library, "spin_1us"));
  fill();
}
BY_NAME(module_globals) {
  load_each(".version 8.0\n.target sm_90\n"
            ".visible .global .align 8 .b8 table[314572800];\nspin");
}
BY_NAME(module_of_many_types) {
  load_each("// .global .b8 no[999999999];\n"
            ".global .align 16 .v4 .f32 a[1024][4096], b[4096];\n"
            ".extern .global .f64 c[16777216];\n"
            ".global .u64 d[2] = {1, 2};\n");
}
/* PTX knows no lines. */
BY_NAME(module_on_one_line) {
  load_each(".version 8.0 .target sm_90 .visible .global .align 8 .b8 table[314572800];");
}
BY_NAME(library_globals) {
  load_each_library(".global .b8 big[400000000];");
}
/* What nvcc makes: a fat binary with a cubin, in the runtime's wrapper. */
static struct {
  uint32_t magic;
  uint16_t version, header;
  uint64_t size;
  struct {
    uint16_t kind, version;
    uint32_t header;
    uint64_t size;
    uint32_t compressed, unused[9];
  } entry;
  struct {
    Elf64_Ehdr head;
    Elf64_Shdr section[3];
    char names[24];
  } cubin;
} fat = {
    0xba55ed50, 1, 16, sizeof fat.entry + sizeof fat.cubin,
    {2, 1, sizeof fat.entry, sizeof fat.cubin, 0, {0}},
    {{.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64}, .e_shoff = sizeof(Elf64_Ehdr), .e_shnum = 3, .e_shstrndx = 2},
     {{0},
      {.sh_name = 1, .sh_type = SHT_NOBITS, .sh_size = 300 * MIB},
      {.sh_name = 12, .sh_type = SHT_STRTAB, .sh_offset = sizeof(Elf64_Ehdr) + 3 * sizeof(Elf64_Shdr),
       .sh_size = sizeof fat.cubin.names}},
     "\0.nv.global\0.shstrtab"},
};
static const struct {
  uint32_t magic, version;
  const void *data, *unused;
} wrapper = {0x466243b1, 1, &fat, NULL};

BY_NAME(cubin_globals) {
  load_each(&fat.cubin);
}
BY_NAME(fat_globals) {
  load_each(&fat);
}
BY_NAME(wrapped_globals) {
  load_each_library(&wrapper);
}
BY_NAME(fat_file) {
  char path[] = "/tmp/fat-XXXXXX";
  CUmodule module;
  CUfunction f;
  int fd = mkstemp(path);
  if (fd < 0 || write(fd, &fat, sizeof fat) != (ssize_t)sizeof fat) exit(1);
  for (int i = 0; i < 8; i++)
    if (got(cuModuleLoad(&module, path))) got(cuModuleGetFunction(&f, module, "spin_1us"));
  unlink(path);
  fill();
}
BY_NAME(modules_when_full) {
  CUmodule module;
  CUfunction f;
  fill();
  for (int i = 0; i < 40; i++)
    if (got(cuModuleLoadData(&module, ".global .b8 some[500000];")))
      got(cuModuleGetFunction(&f, module, "spin_1us"));
}
BY_NAME(stack_limit) {
  for (size_t s = 2048; s <= 16384; s *= 2) got(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, s));
  fill();
}
BY_NAME(stack_when_full) {
  fill();
  got(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
}
BY_NAME(printf_limit) {
  for (size_t f = 64 * MIB; f <= 4096 * MIB; f *= 2) got(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, f));
  fill();
}
BY_NAME(heap_limit) {
  for (size_t h = 64 * MIB; h <= 4096 * MIB; h *= 2) got(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, h));
  fill();
}
BY_NAME(heap_when_full) {
  fill();
  got(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 512 * MIB));
}
BY_NAME(local_memory) {
  static const char *const names[] = {"spin_1us_local2048", "spin_1us_local4096",
                                      "spin_1us_local60000"};
  CUmodule module;
  must(cuModuleLoadData(&module, "spin"), "module");
  for (int i = 0; i < 3; i++) {
    CUfunction f;
    if (got(cuModuleGetFunction(&f, module, names[i]))) run(f);
  }
  fill();
}
BY_NAME(local_memory_when_full) {
  CUmodule module;
  CUfunction f;
  must(cuModuleLoadData(&module, "spin"), "module");
  fill();
  if (got(cuModuleGetFunction(&f, module, "spin_1us_local4096"))) run(f);
}

/* A library's kernels run in any context, and may be looked up in none. */
BY_NAME(local_memory_elsewhere) {
  CUcontext other;
  must(cuCtxCreate_v2(&other, 0, device), "context");
  must(cuCtxSetCurrent(NULL), "no context");
  CUlibrary library = library_of("spin");
  CUfunction f = kernel_of(library, "spin_1us_local3000");
  for (int i = 0; i < 2; i++) {
    must(cuCtxSetCurrent(i ? other : context), "context");
    run(f);
    run(f);
  }
  fill();
}
BY_NAME(local_memory_in_a_graph) {
  CUDA_KERNEL_NODE_PARAMS node = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
                                  .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
  CUgraph graph;
  CUgraphNode added;
  CUgraphExec exec;
  must(cuCtxSetCurrent(NULL), "no context");
  CUlibrary library = library_of("spin");
  must(cuLibraryGetKernel(&node.kern, library, "spin_1us_local3000"), "kernel");
  must(cuCtxSetCurrent(context), "context");
  must(cuGraphCreate(&graph, 0), "graph");
  must(cuGraphAddKernelNode_v2(&added, graph, NULL, 0, &node), "node");
  fill();
  if (got(cuGraphInstantiateWithFlags(&exec, graph, 0))) got(cuGraphLaunch(exec, NULL));
}

/* Handles that come by the dozen, and not by name. */
static const char *const listed = ".visible .entry spin_1us() {}\n.visible .entry spin_1us_local3000() {}\n";

BY_NAME(local_memory_of_listed_functions) {
  CUmodule module;
  CUfunction f[8];
  unsigned count;
  must(cuModuleLoadData(&module, listed), "module");
  must(cuModuleGetFunctionCount(&count, module), "count");
  if (count != 2) printf("%u functions\n", count);
  if (got(cuModuleEnumerateFunctions(f, 8, module))) run(f[1]);
  fill();
}
BY_NAME(local_memory_of_listed_kernels) {
  CUkernel k[2];
  CUlibrary library = library_of(listed);
  must(cuLibraryEnumerateKernels(k, 2, library), "kernels");
  fill();
  run((CUfunction)k[1]);
}

/* ---- green contexts ---- */

static CUdevResourceDesc whole(void) {
  CUdevResource all;
  CUdevResourceDesc desc;
  must(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM), "resource");
  must(cuDevResourceGenerateDesc(&desc, &all, 1), "description");
  return desc;
}
/* Another context holds what is held: the primary one is to be made by a green one. */
static void leave_primary(void) {
  CUcontext c;
  must(cuCtxCreate_v2(&c, 0, device), "context");
  must(cuDevicePrimaryCtxRelease_v2(device), "release");
}
BY_NAME(green_contexts) {
  CUgreenCtx green;
  leave_primary();
  for (int i = 0; i < 8; i++) got(cuGreenCtxCreate(&green, whole(), device, CU_GREEN_CTX_DEFAULT_STREAM));
  fill();
}
BY_NAME(green_contexts_when_full) {
  CUgreenCtx green;
  leave_primary();
  fill();
  got(cuGreenCtxCreate(&green, whole(), device, CU_GREEN_CTX_DEFAULT_STREAM));
}

/* ---- arrays ---- */

static CUresult array_of(size_t width, size_t height, size_t depth, CUarray_format f, unsigned n) {
  CUDA_ARRAY3D_DESCRIPTOR d = {width, height, depth, f, n, 0};
  CUarray a;
  return cuArray3DCreate_v2(&a, &d);
}
BY_NAME(arrays_padded) {
  for (int i = 0; i < 40; i++) got(array_of(1, 129 * 4096, 8, CU_AD_FORMAT_UNSIGNED_INT8, 1));
  fill();
}
BY_NAME(arrays_of_small_rows) {
  for (int i = 0; i < 3000; i++) got(array_of(65, 9, 40, CU_AD_FORMAT_FLOAT, 1));
  fill();
}
/* Slices lie in blocks, of which the last one is not full. */
BY_NAME(arrays_with_a_depth) {
  for (int i = 0; i < 200; i++) got(array_of(256, 256, 17, CU_AD_FORMAT_FLOAT, 1));
  fill();
}
BY_NAME(arrays_of_one_line) {
  for (int i = 0; i < 600; i++) got(array_of(131072, 0, 0, CU_AD_FORMAT_FLOAT, 4));
  fill();
}
BY_NAME(arrays_of_a_few_texels) {
  for (int i = 0; i < 40000; i++) got(array_of(4, 4, 0, CU_AD_FORMAT_FLOAT, 1));
  fill();
}
BY_NAME(arrays_of_every_format) {
  for (unsigned f = 0; f < 0xd0; f++) {
    CUDA_ARRAY_DESCRIPTOR d = {4001, 3001, (CUarray_format)f, 4};
    CUarray a;
    if (cuArrayCreate_v2(&a, &d) != CUDA_SUCCESS) tried++;
  }
  fill();
}
BY_NAME(mipmaps) {
  CUDA_ARRAY3D_DESCRIPTOR d = {4097, 4097, 0, CU_AD_FORMAT_FLOAT, 4, 0};
  CUmipmappedArray m;
  for (int i = 0; i < 6; i++) got(cuMipmappedArrayCreate(&m, &d, 13));
  fill();
}
BY_NAME(mipmaps_with_a_depth) {
  CUDA_ARRAY3D_DESCRIPTOR d = {256, 256, 33, CU_AD_FORMAT_FLOAT, 1, 0};
  CUmipmappedArray m;
  for (int i = 0; i < 120; i++) got(cuMipmappedArrayCreate(&m, &d, 9));
  fill();
}
/* Each layer, with all of its levels, begins with a whole block. */
BY_NAME(mipmaps_of_layers_with_a_rest) {
  CUDA_ARRAY3D_DESCRIPTOR d = {16, 128, 2048, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED};
  CUmipmappedArray m;
  for (int i = 0; i < 40; i++) got(cuMipmappedArrayCreate(&m, &d, 8));
  fill();
}
/* Layers do not become fewer from level to level. */
BY_NAME(mipmaps_of_layers) {
  CUDA_ARRAY3D_DESCRIPTOR d = {64, 64, 2048, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED};
  CUmipmappedArray m;
  for (int i = 0; i < 40; i++) got(cuMipmappedArrayCreate(&m, &d, 7));
  fill();
}

/* ---- plain ---- */

BY_NAME(small_pieces) {
  for (int i = 0; i < 3000; i++) take(MIB - 1);
  fill();
}
/* Twenty of them fit into a granule, and the next one lies in another. */
BY_NAME(small_pieces_with_a_rest) {
  for (int i = 0; i < 10700; i++) take(100000);
  fill();
}
BY_NAME(overflow) {
  CUdeviceptr p;
  size_t pitch;
  got(cuMemAlloc_v2(&p, SIZE_MAX));
  got(cuMemAlloc_v2(&p, SIZE_MAX - 4 * MIB));
  got(cuMemAllocPitch_v2(&p, &pitch, 1ull << 33, 1ull << 33, 4));
  got(cuMemAllocManaged(&p, SIZE_MAX / 2, CU_MEM_ATTACH_GLOBAL));
  got(cuMemAllocAsync(&p, SIZE_MAX, NULL));
  fill();
}
BY_NAME(freed_twice) {
  CUdeviceptr p;
  must(cuMemAlloc_v2(&p, 500 * MIB), "plain");
  must(cuMemFree_v2(p), "free");
  for (int i = 0; i < 5; i++) cuMemFree_v2(p), cuMemFreeAsync(p, NULL);
  fill();
}
BY_NAME(descriptors_closed) {
  hold(700 * MIB);
  for (int round = 0; round < 20; round++) {
    for (int fd = 3; fd < 1024; fd++) close(fd);
    usleep(100000);
  }
  pid_t child = fork();
  if (!child) {
    cuInit(0);
    open_gpu();
    fill();
    _exit(0);
  }
  waitpid(child, NULL, 0);
}
BY_NAME(forked) {
  hold(700 * MIB);
  for (int i = 0; i < 4; i++)
    if (!fork()) {
      open_gpu();
      fill();
      usleep(300000);
      _exit(0);
    }
  while (wait(NULL) > 0) continue;
}
BY_NAME(ipc_exported) {
  CUdeviceptr p;
  CUipcMemHandle handle;
  for (int i = 0; i < 3; i++) {
    if (!got(cuMemAlloc_v2(&p, 300 * MIB))) continue;
    must(cuIpcGetMemHandle(&handle, p), "handle");
  }
  fill();
}

/* ---- small requests: each context has granules of its own for them ---- */

BY_NAME(small_in_each_context) {
  fill();
  for (int i = 0; i < 60; i++)
    if (open_context()) take(256);
}
BY_NAME(small_arrays_in_each_context) {
  for (int i = 0; i < 60; i++)
    if (open_context()) got(array_of(16, 16, 0, CU_AD_FORMAT_FLOAT, 1));
  must(cuCtxSetCurrent(context), "context");
  fill();
}

/* ---- limits that are changed while others change them, or lowered under a kernel's feet ---- */

static void *lower_heap(void *until) {
  must(cuCtxSetCurrent(context), "context");
  while (!*(atomic_bool *)until) cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * MIB);
  return NULL;
}
BY_NAME(limits_lowered_by_threads) {
  static atomic_bool enough;
  pthread_t t[3];
  take(500 * MIB);
  start(t, 3, lower_heap, &enough);
  for (int i = 0; i < 20000; i++) cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 400 * MIB);
  enough = true;
  join(t, 3);
  fill();
}
BY_NAME(limits_of_each_context) {
  for (int i = 0; i < 12; i++)
    if (open_context()) {
      got(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 100 * MIB));
      got(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 20 * MIB));
    }
  fill();
}
BY_NAME(stack_lowered_below_a_kernel) {
  CUmodule module;
  CUfunction f;
  must(cuModuleLoadData(&module, "spin"), "module");
  if (got(cuModuleGetFunction(&f, module, "spin_1us_local3000")))
    for (int i = 0; i < 3; i++) run(f);
  must(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024), "limit");
  fill();
  for (int i = 0; i < 3; i++) run(f);
}
BY_NAME(depth_of_launching_kernels) {
  for (size_t d = 3; d <= 24; d += 3) got(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, d));
  fill();
}
BY_NAME(launches_of_launching_kernels) {
  for (size_t n = 4096; n <= 1u << 20; n *= 2) got(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, n));
  fill();
}
BY_NAME(depth_when_full) {
  fill();
  got(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 3));
}

/* ---- the driver's functions by other ways ---- */

typedef CUresult alloc_t(CUdeviceptr *, size_t);

static void take_all_by(void *function) {
  CUdeviceptr p;
  alloc_t *alloc;
  *(void **)&alloc = function;
  fill();
  for (int i = 0; alloc && i < 8; i++) got(alloc(&p, 100 * MIB));
}
BY_NAME(versioned_look_up) {
  take_all_by(dlvsym(RTLD_DEFAULT, "cuMemAlloc_v2", "LIBCUDA_1"));
  take_all_by(dlvsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2", "GLIBC_2.2.5"));
}
BY_NAME(look_up_by_handle) {
  Dl_info where;
  void *inside = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuDriverGetVersion");
  if (!dladdr(inside, &where)) return;
  take_all_by(dlsym(dlopen(where.dli_fname, RTLD_NOW | RTLD_LOCAL), "cuMemAlloc_v2"));
  take_all_by(dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
}
/* A driver of its own in another namespace: it is another one's memory, but the same GPU's. */
BY_NAME(another_namespace) {
  Dl_info where;
  if (!dladdr(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuDriverGetVersion"), &where)) return;
  void *other = dlmopen(LM_ID_NEWLM, where.dli_fname, RTLD_NOW);
  if (other) take_all_by(dlsym(other, "cuMemAlloc_v2"));
}
BY_NAME(every_version_of_a_name) {
  static const int versions[] = {2000, 3020, 7000, 10000, 11020, 11030, 12000, 12050, 13000, 13010};
  CUdeviceptr p;
  fill();
  for (unsigned i = 0; i < sizeof versions / sizeof *versions; i++)
    for (unsigned flags = 0; flags < 3; flags++) {
      void *f = NULL;
      CUdriverProcAddressQueryResult status;
      if (cuGetProcAddress_v2("cuMemAlloc", &f, versions[i], flags, &status) == CUDA_SUCCESS && f && versions[i] > 3000)
        got(((alloc_t *)f)(&p, 50 * MIB));
      f = NULL;
      if (cuGetProcAddress("cuMemAllocAsync", &f, versions[i], flags) == CUDA_SUCCESS && f)
        got(((CUresult(*)(CUdeviceptr *, size_t, CUstream))f)(&p, 50 * MIB, NULL));
    }
}

/* ---- libraries: in every context, with variables of its own ---- */

static const char *const library_text = ".global .b8 big[100000000];";

static void use(CUlibrary library) {
  CUdeviceptr p;
  size_t bytes;
  got(cuLibraryGetGlobal(&p, &bytes, library, "big"));
}
BY_NAME(library_in_each_context) {
  CUlibrary library = library_of(library_text);
  for (int i = 0; i < 12; i++)
    if (open_context()) use(library);
  fill();
}
BY_NAME(libraries_before_contexts) {
  CUlibrary library;
  must(cuDevicePrimaryCtxRelease_v2(device), "release");
  must(cuCtxSetCurrent(NULL), "no context");
  for (int i = 0; i < 4; i++) {
    if (!load_library(&library, library_text)) continue;
    for (int k = 0; k < 2; k++)
      if (open_context()) use(library);
  }
  fill();
}
BY_NAME(library_outlives_its_context) {
  CUlibrary library;
  CUcontext c;
  for (int i = 0; i < 6; i++) {
    if (!got(cuCtxCreate_v2(&c, 0, device))) continue;
    bool ok = load_library(&library, ".global .b8 big[200000000];");
    must(cuCtxDestroy_v2(c), "destroy");
    must(cuCtxSetCurrent(context), "context");
    if (ok) use(library);
  }
  fill();
}
BY_NAME(library_by_its_kernel_elsewhere) {
  CUlibrary library;
  if (!load_library(&library, ".global .b8 big[300000000];")) return;
  CUfunction f = kernel_of(library, "spin_1us");
  for (int i = 0; i < 4; i++)
    if (open_context()) run(f);
  fill();
}
BY_NAME(library_after_a_reset) {
  CUlibrary library = library_of(".global .b8 big[300000000];");
  use(library);
  must(cuDevicePrimaryCtxReset_v2(device), "reset");
  fill();
  use(library);
}
BY_NAME(variables_that_take_reckoning) {
  static const char *const texts[] = {".global .b8 a[][100000000] = {{1}, {2}, {3}};", ".global .align 268435456 .b8 a[1];"};
  CUmodule module;
  CUfunction f;
  for (unsigned i = 0; i < 8; i++)
    if (got(cuModuleLoadData(&module, texts[i % 2]))) got(cuModuleGetFunction(&f, module, "spin_1us"));
  fill();
}

/* ---- kernels with deep stacks, looked up elsewhere ---- */

BY_NAME(function_of_another_context) {
  CUmodule module;
  CUfunction f;
  CUcontext other;
  must(cuModuleLoadData(&module, "spin"), "module");
  must(cuCtxCreate_v2(&other, 0, device), "context");
  must(cuModuleGetFunction(&f, module, "spin_1us_local3000"), "function");
  must(cuCtxSetCurrent(context), "context");
  run(f);
  fill();
}
BY_NAME(function_without_a_context) {
  CUmodule module;
  CUfunction f;
  must(cuModuleLoadData(&module, "spin"), "module");
  must(cuCtxSetCurrent(NULL), "no context");
  must(cuModuleGetFunction(&f, module, "spin_1us_local3000"), "function");
  must(cuCtxSetCurrent(context), "context");
  fill();
  run(f);
}

/* ---- arrays that say nothing of their levels, and those that get their memory later ---- */

BY_NAME(mipmaps_without_levels) {
  CUDA_ARRAY3D_DESCRIPTOR d = {4096, 4096, 0, CU_AD_FORMAT_FLOAT, 4, 0};
  CUmipmappedArray m;
  for (int i = 0; i < 8; i++) got(cuMipmappedArrayCreate(&m, &d, 0));
  fill();
}
BY_NAME(mipmaps_of_a_million_levels) {
  CUDA_ARRAY3D_DESCRIPTOR d = {4096, 2048, 0, CU_AD_FORMAT_FLOAT, 4, 0};
  CUmipmappedArray m;
  for (int i = 0; i < 12; i++) got(cuMipmappedArrayCreate(&m, &d, 1000000));
  fill();
}
BY_NAME(arrays_mapped_later) {
  CUDA_ARRAY3D_DESCRIPTOR d = {16384, 4096, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_DEFERRED_MAPPING};
  CUarray a;
  CUmipmappedArray m;
  for (int i = 0; i < 8; i++) got(cuArray3DCreate_v2(&a, &d)), got(cuMipmappedArrayCreate(&m, &d, 3));
  fill();
}

/* ---- what another thread changes between the look and the call ---- */

static atomic_bool stop_changing;
static CUDA_ARRAY3D_DESCRIPTOR changed_array;
static CUmemAllocationProp changed_prop;

static void *change_array(void *unused) {
  while (!stop_changing) {
    *(volatile size_t *)&changed_array.Width = 64;
    *(volatile size_t *)&changed_array.Width = 65536;
  }
  return unused;
}
BY_NAME(array_changed_meanwhile) {
  pthread_t t;
  CUarray a;
  changed_array = (CUDA_ARRAY3D_DESCRIPTOR){64, 256, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  pthread_create(&t, NULL, change_array, NULL);
  for (int i = 0; i < 3000; i++) cuArray3DCreate_v2(&a, &changed_array);
  stop_changing = true;
  pthread_join(t, NULL);
  fill();
}
static void *change_prop(void *unused) {
  while (!stop_changing) {
    *(volatile CUmemLocationType *)&changed_prop.location.type = CU_MEM_LOCATION_TYPE_HOST;
    *(volatile CUmemLocationType *)&changed_prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  }
  return unused;
}
BY_NAME(location_changed_meanwhile) {
  pthread_t t;
  CUmemGenericAllocationHandle h;
  changed_prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED};
  fill();
  pthread_create(&t, NULL, change_prop, NULL);
  for (int i = 0; i < 3000; i++) cuMemCreate(&h, 2 * MIB, &changed_prop, 0);
  stop_changing = true;
  pthread_join(t, NULL);
}
static char big_file[] = "/tmp/big-XXXXXX", small_file[] = "/tmp/small-XXXXXX", module_file[] = "/tmp/module-XXXXXX";

static void write_text(char *path, const char *text) {
  int fd = mkstemp(path);
  if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text)) exit(1);
  close(fd);
}
static void *change_file(void *unused) {
  while (!stop_changing) {
    unlink(module_file);
    if (link(small_file, module_file) < 0) continue;
    unlink(module_file);
    if (link(big_file, module_file) < 0) continue;
  }
  return unused;
}
BY_NAME(file_changed_meanwhile) {
  pthread_t t;
  CUmodule m;
  CUfunction f;
  write_text(big_file, ".global .b8 big[300000000];");
  write_text(small_file, ".global .b8 big[3000000];");
  write_text(module_file, "spin");
  take(900 * MIB);
  pthread_create(&t, NULL, change_file, NULL);
  for (int i = 0; i < 2000; i++)
    if (cuModuleLoad(&m, module_file) == CUDA_SUCCESS) {
      cuModuleGetFunction(&f, m, "spin_1us");
      cuModuleUnload(m);
    }
  stop_changing = true;
  pthread_join(t, NULL);
  unlink(big_file), unlink(small_file), unlink(module_file);
}

/* ---- races ---- */

static void *trim_and_fill(void *unused) {
  CUdeviceptr p;
  must(cuCtxSetCurrent(context), "context");
  for (int i = 0; i < 3000; i++) {
    cuDeviceGraphMemTrim(device);
    if (cuMemAlloc_v2(&p, 600 * MIB) == CUDA_SUCCESS) cuMemFree_v2(p);
  }
  return unused;
}
BY_NAME(graph_trimmed_meanwhile) {
  pthread_t t;
  CUgraphExec exec;
  must(cuGraphInstantiateWithFlags(&exec, with_node(600 * MIB), 0), "instantiate");
  pthread_create(&t, NULL, trim_and_fill, NULL);
  for (int i = 0; i < 3000; i++) cuGraphLaunch(exec, NULL);
  pthread_join(t, NULL);
  fill();
}
static void *come_and_go(void *unused) {
  CUcontext c;
  for (int i = 0; i < 3000; i++)
    if (cuDevicePrimaryCtxRetain(&c, device) == CUDA_SUCCESS) cuDevicePrimaryCtxRelease_v2(device);
  return unused;
}
BY_NAME(primary_context_by_threads) {
  CUcontext c;
  must(cuCtxCreate_v2(&c, 0, device), "context");
  must(cuDevicePrimaryCtxRelease_v2(device), "release");
  in_threads(4, come_and_go, NULL);
  must(cuDevicePrimaryCtxRetain(&context, device), "context");
  fill();
  in_threads(4, come_and_go, NULL);
  fill();
}
static CUstream captured;
static void *capture_again(void *unused) {
  CUgraph graph;
  must(cuCtxSetCurrent(context), "context");
  for (int i = 0; i < 4000; i++)
    if (cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS &&
        cuStreamEndCapture(captured, &graph) == CUDA_SUCCESS && graph)
      cuGraphDestroy(graph);
  return unused;
}
BY_NAME(capture_ended_meanwhile) {
  pthread_t t;
  CUdeviceptr p;
  must(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING), "stream");
  pthread_create(&t, NULL, capture_again, NULL);
  for (int i = 0; i < 400; i++) cuMemAllocAsync(&p, 3 * MIB, captured);
  pthread_join(t, NULL);
  fill();
}
BY_NAME(capture_in_another_stream) {
  CUgraph graph;
  CUdeviceptr p;
  must(cuStreamCreate(&captured, CU_STREAM_DEFAULT), "stream");
  must(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_GLOBAL), "capture");
  for (int i = 0; i < 20; i++) {
    got(cuMemAllocAsync(&p, 100 * MIB, NULL));
    got(cuMemAllocAsync(&p, 100 * MIB, CU_STREAM_PER_THREAD));
  }
  cuStreamEndCapture(captured, &graph);
  fill();
}
static pthread_barrier_t at_once;
static CUdeviceptr shared_range;
static void *map_and_release(void *number) {
  CUdeviceptr at = shared_range + (CUdeviceptr)(uintptr_t)number * 8 * MIB;
  must(cuCtxSetCurrent(context), "context");
  for (int i = 0; i < 2000; i++) {
    CUmemGenericAllocationHandle own, again;
    if (make(&own, 8 * MIB) != CUDA_SUCCESS) continue;
    if (cuMemMap(at, 8 * MIB, 0, own, 0) == CUDA_SUCCESS) {
      if (cuMemRetainAllocationHandle(&again, (void *)(at + MIB)) == CUDA_SUCCESS) cuMemRelease(again);
      if (i % 3) cuMemRelease(own);
      cuMemUnmap(at, 8 * MIB);
      if (i % 3 == 0) cuMemRelease(own);
    } else {
      cuMemRelease(own);
    }
  }
  return NULL;
}
BY_NAME(mapped_by_threads) {
  pthread_t t[6];
  must(cuMemAddressReserve(&shared_range, 64 * MIB, 0, 0, 0), "reserve");
  hold(880 * MIB);
  for (int i = 0; i < 6; i++) pthread_create(&t[i], NULL, map_and_release, (void *)(uintptr_t)i);
  join(t, 6);
  fill();
}
static void *take_and_give(void *unused) {
  CUdeviceptr p;
  CUarray a;
  CUDA_ARRAY_DESCRIPTOR d = {1024, 1024, CU_AD_FORMAT_FLOAT, 1};
  if (cuCtxSetCurrent(context) != CUDA_SUCCESS) return NULL;
  for (;;) {
    pthread_testcancel();
    if (cuMemAlloc_v2(&p, 30 * MIB) == CUDA_SUCCESS) cuMemFree_v2(p);
    if (cuMemAllocAsync(&p, 30 * MIB, NULL) == CUDA_SUCCESS) cuMemFreeAsync(p, NULL);
    if (cuArrayCreate_v2(&a, &d) == CUDA_SUCCESS) cuArrayDestroy(a);
  }
  return unused;
}
BY_NAME(forked_while_threads_allocate) {
  pthread_t t[4];
  hold(900 * MIB);
  start(t, 4, take_and_give, NULL);
  for (int i = 0; i < 15; i++) {
    pid_t child = fork();
    if (!child) {
      CUcontext c;
      if (cuCtxCreate_v2(&c, 0, 0) == CUDA_SUCCESS) fill();
      exit(0);
    }
    waitpid(child, NULL, 0);
  }
  for (int i = 0; i < 4; i++) pthread_cancel(t[i]), pthread_join(t[i], NULL);
  fill();
}
BY_NAME(cancelled_while_allocating) {
  for (int i = 0; i < 60; i++) {
    pthread_t t[3];
    start(t, 3, take_and_give, NULL);
    usleep(500);
    for (int k = 0; k < 3; k++) pthread_cancel(t[k]);
    join(t, 3);
  }
  fill();
}
static CUdeviceptr freed_by_all;
static void *free_it(void *unused) {
  must(cuCtxSetCurrent(context), "context");
  for (int i = 0; i < 3000; i++) cuMemFree_v2(freed_by_all);
  return unused;
}
BY_NAME(freed_by_many_threads) {
  pthread_t t[4];
  start(t, 4, free_it, NULL);
  for (int i = 0; i < 3000; i++) {
    CUdeviceptr p;
    if (cuMemAlloc_v2(&p, 400 * MIB) == CUDA_SUCCESS) freed_by_all = p;
  }
  join(t, 4);
  fill();
}
BY_NAME(cloned_without_the_library) {
  hold(700 * MIB);
  pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
  if (!child) {
    CUcontext c;
    if (cuCtxCreate_v2(&c, 0, 0) == CUDA_SUCCESS) fill();
    pause();
    _exit(0);
  }
  for (int i = 0; i < 20; i++) fill(), usleep(10000);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
}

static void *contexts_by_one(void *unused) {
  for (int i = 0; i < 300; i++) {
    CUcontext c;
    CUdeviceptr p;
    if (cuCtxCreate_v2(&c, 0, device)) continue;
    if (i % 3) cuMemAlloc_v2(&p, 1000), cuMemAlloc_v2(&p, 40 * MIB);
    if (i % 2) cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 50 * MIB);
    cuCtxDestroy_v2(c);
  }
  return unused;
}
BY_NAME(contexts_by_threads) {
  take(700 * MIB);
  in_threads(4, contexts_by_one, NULL);
  fill();
}
static void *libraries_by_one(void *unused) {
  CUlibrary library;
  for (int i = 0; i < 300; i++)
    if (cuLibraryLoadData(&library, library_text, NULL, NULL, 0, NULL, NULL, 0) == CUDA_SUCCESS) {
      CUdeviceptr p;
      size_t bytes;
      cuCtxSetCurrent(context);
      cuLibraryGetGlobal(&p, &bytes, library, "big");
      cuLibraryUnload(library);
    }
  return unused;
}
BY_NAME(libraries_beside_contexts) {
  pthread_t t[4];
  take(600 * MIB);
  for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, i % 2 ? contexts_by_one : libraries_by_one, NULL);
  join(t, 4);
  must(cuCtxSetCurrent(context), "context");
  fill();
}
static void *pools_by_one(void *unused) {
  must(cuCtxSetCurrent(context), "context");
  for (int i = 0; i < 500; i++) {
    CUmemoryPool pool = pool_on(i % 4 ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST);
    CUdeviceptr p, q;
    bool one = cuMemAllocFromPoolAsync(&p, 30 * MIB, pool, NULL) == CUDA_SUCCESS;
    bool two = cuMemAllocAsync(&q, 20 * MIB, NULL) == CUDA_SUCCESS;
    cuMemPoolDestroy(pool);
    if (one) cuMemFreeAsync(p, NULL);
    if (two) cuMemFreeAsync(q, NULL);
  }
  return unused;
}
BY_NAME(pools_come_and_go) {
  take(800 * MIB);
  in_threads(4, pools_by_one, NULL);
  fill();
}
/* What a program held is gone when it executes another one, which sits in its place. */
BY_NAME(executed) {
  take(700 * MIB);
  take_in_order(100 * MIB);
  execl("/proc/self/exe", "ways", "executed_again", NULL);
  exit(1);
}
BY_NAME(executed_again) {
  take(700 * MIB);
  fill();
}
BY_NAME(executed_many_times) {
  const char *again = getenv("AGAIN");
  int left = again ? atoi(again) : 20;
  char next[16];
  fill();
  snprintf(next, sizeof next, "%d", left - 1);
  setenv("AGAIN", next, 1);
  if (left > 0) execl("/proc/self/exe", "ways", "executed_many_times", NULL);
}

/* ---- in stream order ---- */

BY_NAME(freed_in_stream_order) {
  CUdeviceptr p;
  CUstream s;
  CUfunction f = kernel_named("spin_50ms");
  must(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "stream");
  for (int i = 0; i < 6; i++) {
    must(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL), "launch");
    if (got(cuMemAlloc_v2(&p, 600 * MIB))) must(cuMemFreeAsync(p, s), "free");
    usleep(10000);
  }
  fill();
}
BY_NAME(freed_in_order_and_destroyed) {
  CUdeviceptr p;
  for (int i = 0; i < 4; i++) {
    CUcontext c;
    CUstream s;
    if (!got(cuCtxCreate_v2(&c, 0, device))) continue;
    CUfunction f = kernel_named("spin_20ms");
    must(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "stream");
    bool ok = got(cuMemAlloc_v2(&p, 600 * MIB));
    must(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL), "launch");
    if (ok) must(cuMemFreeAsync(p, s), "free");
    must(cuStreamDestroy_v2(s), "destroy");
    if (i % 2) must(cuCtxDestroy_v2(c), "destroy");
    must(cuCtxSetCurrent(context), "context");
    if (cuMemAlloc_v2(&p, 600 * MIB) == CUDA_SUCCESS) must(cuMemFree_v2(p), "free");
  }
  fill();
}

/* ---- memory that moves from its first place, or is on another GPU ---- */

BY_NAME(managed_pool_on_host) {
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED, .location = {.type = CU_MEM_LOCATION_TYPE_HOST}};
  CUmemoryPool pool;
  must(cuMemPoolCreate(&pool, &props), "pool");
  for (int i = 0; i < 8; i++) take_from(pool, 200 * MIB);
  fill();
}
BY_NAME(pools_of_both_places) {
  CUdeviceptr p;
  for (int i = 0; i < 40; i++) {
    CUmemoryPool pool = pool_on(i % 2 ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST);
    if (got(cuMemAllocFromPoolAsync(&p, 90 * MIB, pool, NULL)) && i % 2 == 0) must(cuMemFreeAsync(p, NULL), "free");
    if (i % 2 == 0) must(cuMemPoolDestroy(pool), "destroy");
  }
  fill();
}
BY_NAME(memory_of_another_gpu) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, {1}}};
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, {1}}};
  CUmemGenericAllocationHandle h;
  CUmemoryPool pool;
  int count;
  setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
  must(cuInit(0), "init");
  must(cuDeviceGetCount(&count), "count");
  if (count < 2) return;
  if (cuMemCreate(&h, 2 * MIB, &prop, 0) == CUDA_SUCCESS) exit(1);
  if (cuMemPoolCreate(&pool, &props) == CUDA_SUCCESS) exit(1);
  if (cuDeviceGetDefaultMemPool(&pool, 1) == CUDA_SUCCESS || cuDeviceGetMemPool(&pool, 1) == CUDA_SUCCESS) exit(1);
  fill();
}
BY_NAME(contexts_with_graphics) {
  CUcontext c;
  CUresult (*gl)(CUcontext *, unsigned, CUdevice), (*vdpau)(CUcontext *, unsigned, CUdevice, unsigned, void *);
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  *(void **)&gl = dlsym(driver, "cuGLCtxCreate_v2");
  *(void **)&vdpau = dlsym(driver, "cuVDPAUCtxCreate_v2");
  if (!gl || !vdpau) exit(1);
  for (int i = 0; i < 6; i++) got(gl(&c, 0, device)), got(vdpau(&c, 0, device, 0, NULL));
  fill();
}

/* ---- the page on which the seat's processes keep account ---- */

static void *wipe_the_page(void *unused) {
  char line[512];
  volatile unsigned char *page = NULL;
  size_t size = 0;
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps)) {
    unsigned long from, to;
    if (!strstr(line, "slicekeeper-usage") || sscanf(line, "%lx-%lx", &from, &to) != 2) continue;
    page = (volatile unsigned char *)from;
    size = to - from;
  }
  if (maps) fclose(maps);
  while (page && !stop_changing)
    for (size_t i = 8; i < size; i++) page[i] = 0;
  return unused;
}
BY_NAME(account_wiped) {
  pthread_t t;
  take(700 * MIB);
  pthread_create(&t, NULL, wipe_the_page, NULL);
  for (int i = 0; i < 20; i++) fill(), usleep(1000);
  stop_changing = true;
  pthread_join(t, NULL);
  fill();
}

/* ---- what must not be refused ---- */

BY_NAME(fits_65_pools) {
  for (int i = 0; i < 200; i++) take_from(pool_on(CU_MEM_LOCATION_TYPE_DEVICE), 2 * MIB);
}
BY_NAME(fits_pool_on_host) {
  CUmemoryPool pool = pool_on(CU_MEM_LOCATION_TYPE_HOST);
  for (int i = 0; i < 4; i++) take_from(pool, 512 * MIB);
  take(900 * MIB);
}
BY_NAME(fits_compressed) {
  for (int i = 0; i < 3; i++) got(array_of(16384, 16384, 0, CU_AD_FORMAT_BC7_UNORM, 4));
  got(array_of(16384, 16384, 0, CU_AD_FORMAT_BC1_UNORM, 4));
}
BY_NAME(fits_8_bit) {
  for (int i = 0; i < 3; i++) got(array_of(16384, 16384, 0, CU_AD_FORMAT_UNORM_INT8X1, 1));
}
BY_NAME(fits_pieces_of_half_a_granule) {
  for (int i = 0; i < 900; i++) take(MIB);
}
BY_NAME(fits_arrays_with_a_depth) {
  for (int i = 0; i < 30; i++)
    got(array_of(256, 129, 32, CU_AD_FORMAT_FLOAT, 1)), got(array_of(4096, 1, 33, CU_AD_FORMAT_FLOAT, 4));
}
BY_NAME(fits_small_arrays) {
  for (int i = 0; i < 2000; i++) got(array_of(64, 64, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4));
}
BY_NAME(fits_again) {
  CUdeviceptr p;
  for (int i = 0; i < 50; i++) {
    CUmemoryPool pool = pool_on(CU_MEM_LOCATION_TYPE_DEVICE);
    bool ok = got(cuMemAllocFromPoolAsync(&p, 600 * MIB, pool, NULL));
    must(cuMemPoolDestroy(pool), "destroy");
    if (ok) must(cuMemFreeAsync(p, NULL), "free");
  }
}
static atomic_bool looked_enough;
static void *look_at_memory(void *unused) {
  size_t spare, total;
  cuCtxSetCurrent(context);
  while (!looked_enough) cuMemGetInfo_v2(&spare, &total);
  return unused;
}
/* Threads that ask what the pools hold must not make us miss what we have just given back. */
BY_NAME(fits_again_while_looked_at) {
  CUdeviceptr p = 0;
  CUmemoryPool kept = pool_on(CU_MEM_LOCATION_TYPE_DEVICE);
  pthread_t t[4];
  start(t, 4, look_at_memory, NULL);
  for (int i = 0; i < 2000; i++) {
    CUmemoryPool pool = i % 2 ? kept : pool_on(CU_MEM_LOCATION_TYPE_DEVICE);
    bool ok = got(cuMemAllocFromPoolAsync(&p, 600 * MIB, pool, NULL));
    if (pool != kept) must(cuMemPoolDestroy(pool), "destroy");
    if (ok) must(cuMemFreeAsync(p, NULL), "free");
    if (pool == kept) must(cuMemPoolTrimTo(kept, 0), "trim");
  }
  looked_enough = true;
  join(t, 4);
}
static atomic_int refused;
static void *share_a_pool(void *pool) {
  CUdeviceptr p;
  must(cuCtxSetCurrent(context), "context");
  for (int i = 0; i < 500; i++)
    if (cuMemAllocFromPoolAsync(&p, 100 * MIB + 512, pool, NULL) == CUDA_SUCCESS)
      must(cuMemFreeAsync(p, NULL), "free");
    else
      refused++;
  return NULL;
}
BY_NAME(fits_pool_of_many_threads) {
  CUmemoryPool pool = pool_on(CU_MEM_LOCATION_TYPE_DEVICE);
  in_threads(8, share_a_pool, pool);
  tried = 8 * 500;
  granted = tried - refused;
}
BY_NAME(fits_modules_again) {
  CUmodule m;
  CUfunction f;
  for (int i = 0; i < 50; i++) {
    if (!got(cuModuleLoadData(&m, ".global .b8 table[314572800];"))) continue;
    got(cuModuleGetFunction(&f, m, "spin_1us"));
    must(cuModuleUnload(m), "unload");
  }
}
BY_NAME(fits_contexts_again) {
  CUcontext c;
  for (int i = 0; i < 30; i++) {
    if (!got(cuCtxCreate_v2(&c, 0, device))) continue;
    take(200 * MIB);
    got(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 * MIB));
    must(cuCtxDestroy_v2(c), "destroy");
  }
}
/* At the same moment, with room for one more context: it is made once. */
#define AT_ONCE 4
#define ROUNDS_AT_ONCE 100
static atomic_int missed;
static void *retain_at_once(void *unused) {
  CUcontext c;
  for (int i = 0; i < ROUNDS_AT_ONCE; i++) {
    pthread_barrier_wait(&at_once);
    CUresult r = cuDevicePrimaryCtxRetain(&c, device);
    missed += r != CUDA_SUCCESS;
    pthread_barrier_wait(&at_once);
    if (r == CUDA_SUCCESS) must(cuDevicePrimaryCtxRelease_v2(device), "release");
  }
  return unused;
}
BY_NAME(fits_primary_context_of_threads) {
  CUcontext c;
  size_t left, total;
  must(cuCtxCreate_v2(&c, 0, device), "context");
  must(cuMemGetInfo_v2(&left, &total), "info");
  must(cuDevicePrimaryCtxRelease_v2(device), "release");
  hold(left);
  pthread_barrier_init(&at_once, NULL, AT_ONCE);
  in_threads(AT_ONCE, retain_at_once, NULL);
  tried = AT_ONCE * ROUNDS_AT_ONCE;
  granted = tried - missed;
}
BY_NAME(fits_green_contexts_again) {
  CUgreenCtx green;
  CUcontext c;
  leave_primary();
  for (int i = 0; i < 30; i++) {
    if (!got(cuGreenCtxCreate(&green, whole(), device, CU_GREEN_CTX_DEFAULT_STREAM))) continue;
    must(cuCtxFromGreenCtx(&c, green), "context");
    must(cuCtxPushCurrent_v2(c), "push");
    take(500 * MIB);
    must(cuCtxPopCurrent_v2(&c), "pop");
    must(cuGreenCtxDestroy(green), "destroy");
  }
}
/* What a green context took is the primary one's when the green one is gone. */
BY_NAME(fits_what_a_green_context_left) {
  CUgreenCtx green;
  CUcontext c;
  CUdeviceptr big[20], small[20];
  for (int i = 0; i < 20; i++) {
    must(cuGreenCtxCreate(&green, whole(), device, CU_GREEN_CTX_DEFAULT_STREAM), "green context");
    must(cuCtxFromGreenCtx(&c, green), "context");
    must(cuCtxPushCurrent_v2(c), "push");
    got(cuMemAlloc_v2(&big[i], 30 * MIB));
    got(cuMemAlloc_v2(&small[i], 100000));
    must(cuCtxPopCurrent_v2(&c), "pop");
    must(cuGreenCtxDestroy(green), "destroy");
  }
  for (int i = 0; i < 20; i++) {
    must(cuMemFree_v2(big[i]), "free");
    must(cuMemFree_v2(small[i]), "free");
  }
  got(cuMemAlloc_v2(&big[0], cap - 200 * MIB));
}
BY_NAME(fits_detached_contexts_again) {
  CUcontext c;
  CUdeviceptr p;
  for (int i = 0; i < 30; i++) {
    if (!got(cuCtxCreate_v2(&c, 0, device))) continue;
    got(cuMemAlloc_v2(&p, 500 * MIB));
    must(cuCtxAttach(&c, 0), "attach");
    must(cuCtxDetach(c), "detach");
    if (cuMemAlloc_v2(&p, 700 * MIB) == CUDA_SUCCESS) printf("it was given back while the context lives\n"), granted--;
    must(cuCtxDetach(c), "detach");
  }
}
BY_NAME(fits_stack_back) {
  got(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
  got(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024));
  take(900 * MIB);
}

BY_NAME(fits_freed_in_stream_order) {
  CUdeviceptr p;
  for (int i = 0; i < 50; i++) {
    if (got(cuMemAlloc_v2(&p, 900 * MIB))) must(cuMemFreeAsync(p, NULL), "free");
    must(cuCtxSynchronize(), "synchronise");
  }
}
BY_NAME(fits_libraries_again) {
  CUlibrary library;
  CUcontext c;
  for (int i = 0; i < 30; i++) {
    if (!load_library(&library, ".global .b8 big[300000000];")) continue;
    use(library);
    if (got(cuCtxCreate_v2(&c, 0, device))) use(library);
    if (i % 2) must(cuCtxDestroy_v2(c), "destroy");
    must(cuLibraryUnload(library), "unload");
    if (i % 2 == 0) must(cuCtxDestroy_v2(c), "destroy");
    must(cuCtxSetCurrent(context), "context");
  }
}
BY_NAME(fits_limits_back) {
  size_t depth;
  bool waits = cuCtxGetLimit(&depth, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH) == CUDA_SUCCESS;
  for (int i = 0; i < 30; i++) {
    got(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 500 * MIB));
    got(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * MIB));
    if (waits) got(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 4));
    if (waits) got(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 2));
  }
  take(900 * MIB);
}
BY_NAME(fits_limit_that_the_gpu_lacks) {
  for (size_t depth = 4; depth <= 24; depth += 20) {
    CUresult r = cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, depth);
    tried++;
    granted += r == CUDA_ERROR_UNSUPPORTED_LIMIT;
  }
  take(900 * MIB);
}
BY_NAME(fits_small_beside_modules_in_vain) {
  CUdeviceptr p;
  for (int i = 0; i < 600; i++) {
    if (!got(cuMemAlloc_v2(&p, 100000))) continue;
    if (cuModuleUnload(NULL) == CUDA_SUCCESS || cuLibraryUnload(NULL) == CUDA_SUCCESS) printf("none was unloaded\n");
    must(cuMemFree_v2(p), "free");
  }
}
BY_NAME(fits_small_in_contexts_again) {
  CUcontext c;
  for (int i = 0; i < 60; i++) {
    if (!got(cuCtxCreate_v2(&c, 0, device))) continue;
    for (int k = 0; k < 5; k++) take(100000);
    must(cuCtxDestroy_v2(c), "destroy");
  }
  must(cuCtxSetCurrent(context), "context");
  take(900 * MIB);
}

/* The driver takes a pool's free memory back when the program waits for an event, which no hook sees. */
BY_NAME(fits_physical_after_a_pool) {
  CUmemGenericAllocationHandle h;
  CUdeviceptr p;
  CUevent event;
  must(cuEventCreate(&event, 0), "event");
  for (int i = 0; i < 20; i++) {
    must(cuMemAllocAsync(&p, 700 * MIB, NULL), "async");
    must(cuMemFreeAsync(p, NULL), "free");
    must(cuEventRecord(event, NULL), "record");
    must(cuEventSynchronize(event), "synchronise");
    if (got(make(&h, 700 * MIB))) must(cuMemRelease(h), "release");
  }
}

/* ---- by threads, with all given back at the end ---- */

static size_t left(void) {
  size_t spare, total;
  must(cuCtxSetCurrent(context), "context");
  must(cuMemGetInfo_v2(&spare, &total), "info");
  return spare;
}
/* As much is left as before; the arbiter may have to look again. */
static void all_is_back(size_t before) {
  size_t now = left();
  for (int i = 0; i < 60 && now != before; i++) usleep(50000), now = left();
  if (now != before) printf("%zu KiB were left, now %zu\n", before >> 10, now >> 10);
  tried++, granted += now == before;
}
BY_NAME(fits_libraries_beside_contexts) {
  pthread_t t[4];
  size_t before = left();
  for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, i % 2 ? contexts_by_one : libraries_by_one, NULL);
  join(t, 4);
  all_is_back(before);
}
static void *arrays_by_one(void *unused) {
  CUDA_ARRAY3D_DESCRIPTOR d = {2048, 2048, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  must(cuCtxSetCurrent(context), "context");
  for (int i = 0; i < 300; i++) {
    CUarray a;
    CUmipmappedArray m;
    d.Width = i % 2 ? 64 : 4096;
    bool one = cuArray3DCreate_v2(&a, &d) == CUDA_SUCCESS, two = cuMipmappedArrayCreate(&m, &d, 4) == CUDA_SUCCESS;
    if (one) must(cuArrayDestroy(a), "array");
    if (two) must(cuMipmappedArrayDestroy(m), "mipmap");
  }
  return unused;
}
BY_NAME(fits_arrays_by_threads) {
  size_t before = left();
  hold(900 * MIB);
  in_threads(6, arrays_by_one, NULL);
  all_is_back(before - 900 * MIB);
}
/* Sparse arrays come and go; what is mapped into one of them is not let go of with another one of its handle. */
static atomic_bool mapped_enough;
static bool sparse(CUarray *out) {
  CUDA_ARRAY3D_DESCRIPTOR d = {4096, 4096, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE};
  return cuArray3DCreate_v2(out, &d) == CUDA_SUCCESS;
}
static void *sparse_arrays(void *unused) {
  CUarray a;
  must(cuCtxSetCurrent(context), "context");
  while (!mapped_enough)
    if (sparse(&a)) must(cuArrayDestroy(a), "destroy");
  return unused;
}
BY_NAME(fits_tiles_beside_arrays) {
  pthread_t t[4];
  size_t before = left();
  start(t, 4, sparse_arrays, NULL);
  for (int i = 0; i < 150; i++) {
    CUarray a;
    CUdeviceptr p;
    CUmemGenericAllocationHandle h;
    CUarrayMapInfo map = {.resourceType = CU_RESOURCE_TYPE_ARRAY, .memOperationType = CU_MEM_OPERATION_TYPE_MAP,
                          .memHandleType = CU_MEM_HANDLE_TYPE_GENERIC};
    must(make(&h, 600 * MIB), "create");
    tried++, granted += sparse(&a);
    map.resource.array = a;
    map.memHandle.memHandle = h;
    map.subresource.sparseLevel.extentWidth = map.subresource.sparseLevel.extentHeight = 64;
    map.subresource.sparseLevel.extentDepth = 1;
    must(cuMemMapArrayAsync(&map, 1, NULL), "map");
    must(cuMemRelease(h), "release");
    if (cuMemAlloc_v2(&p, 600 * MIB) == CUDA_SUCCESS) must(cuMemFree_v2(p), "free");
    must(cuArrayDestroy(a), "destroy");
  }
  mapped_enough = true;
  join(t, 4);
  all_is_back(before);
}
BY_NAME(fits_mapped_by_threads) {
  pthread_t t[6];
  size_t before = left();
  must(cuMemAddressReserve(&shared_range, 64 * MIB, 0, 0, 0), "reserve");
  hold(880 * MIB);
  for (int i = 0; i < 6; i++) pthread_create(&t[i], NULL, map_and_release, (void *)(uintptr_t)i);
  join(t, 6);
  all_is_back(before - 880 * MIB);
}
static CUmemGenericAllocationHandle let_go_of;
static CUdeviceptr mapped_late;
static void *map_at_once(void *unused) {
  must(cuCtxSetCurrent(context), "context");
  for (int i = 0; i < 200; i++) {
    pthread_barrier_wait(&at_once);
    cuMemMap(mapped_late, 400 * MIB, 0, let_go_of, 0);
    pthread_barrier_wait(&at_once);
    pthread_barrier_wait(&at_once);
  }
  return unused;
}
/* A handle's last release beside another thread's mapping: it may be mapped just before. */
BY_NAME(released_while_it_is_mapped) {
  pthread_t t;
  pthread_barrier_init(&at_once, NULL, 2);
  must(cuMemAddressReserve(&mapped_late, 400 * MIB, 0, 0, 0), "reserve");
  pthread_create(&t, NULL, map_at_once, NULL);
  for (int i = 0; i < 200; i++) {
    CUdeviceptr p = 0;
    must(make(&let_go_of, 400 * MIB), "create");
    pthread_barrier_wait(&at_once);
    must(cuMemRelease(let_go_of), "release");
    pthread_barrier_wait(&at_once);
    if (cuMemAlloc_v2(&p, 900 * MIB) == CUDA_SUCCESS) must(cuMemFree_v2(p), "free");
    cuMemUnmap(mapped_late, 400 * MIB);
    pthread_barrier_wait(&at_once);
  }
  pthread_join(t, NULL);
}
static void *free_in_order(void *number) {
  CUstream s;
  CUmodule m;
  CUfunction f;
  must(cuCtxSetCurrent(context), "context");
  must(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "stream");
  must(cuModuleLoadData(&m, "none"), "module");
  must(cuModuleGetFunction(&f, m, (uintptr_t)number % 2 ? "spin_5ms" : "spin_10us"), "function");
  for (int i = 0; i < 60; i++) {
    CUdeviceptr p;
    if (cuMemAlloc_v2(&p, ((uintptr_t)number % 2 ? 300 : 2) * MIB) != CUDA_SUCCESS) continue;
    must(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL), "launch");
    must(cuMemFreeAsync(p, s), "free");
  }
  must(cuStreamSynchronize(s), "synchronise");
  must(cuStreamDestroy_v2(s), "destroy");
  must(cuModuleUnload(m), "unload");
  return NULL;
}
BY_NAME(fits_freed_in_stream_order_by_threads) {
  pthread_t t[8];
  size_t before = left();
  for (int i = 0; i < 8; i++) pthread_create(&t[i], NULL, free_in_order, (void *)(uintptr_t)i);
  join(t, 8);
  must(cuCtxSynchronize(), "synchronise");
  all_is_back(before);
}
static CUcontext attached;
static void *attach_at_once(void *unused) {
  CUcontext c;
  CUdeviceptr p;
  for (int i = 0; i < 100; i++) {
    pthread_barrier_wait(&at_once);
    must(cuCtxSetCurrent(attached), "context");
    pthread_barrier_wait(&at_once);
    bool ok = cuCtxAttach(&c, 0) == CUDA_SUCCESS;
    pthread_barrier_wait(&at_once);
    if (ok && cuMemAlloc_v2(&p, 600 * MIB) == CUDA_SUCCESS) must(cuMemFree_v2(p), "free");
    if (ok) must(cuCtxDetach(c), "detach");
    pthread_barrier_wait(&at_once);
  }
  return unused;
}
BY_NAME(fits_attached_by_threads) {
  pthread_t t;
  CUcontext c;
  CUdeviceptr p;
  size_t before = left();
  pthread_barrier_init(&at_once, NULL, 2);
  pthread_create(&t, NULL, attach_at_once, NULL);
  for (int i = 0; i < 100; i++) {
    must(cuCtxCreate_v2(&attached, 0, device), "context");
    must(cuMemAlloc_v2(&p, 600 * MIB), "plain");
    pthread_barrier_wait(&at_once);
    pthread_barrier_wait(&at_once);
    must(cuCtxDetach(attached), "detach");
    must(cuCtxGetCurrent(&c), "current");
    if (c == attached) must(cuCtxPopCurrent_v2(&c), "pop");
    pthread_barrier_wait(&at_once);
    pthread_barrier_wait(&at_once);
  }
  pthread_join(t, NULL);
  all_is_back(before);
}
static atomic_bool reset_enough;
static void *take_meanwhile(void *unused) {
  CUdeviceptr p;
  must(cuCtxSetCurrent(context), "context");
  while (!reset_enough)
    if (cuMemAlloc_v2(&p, 60 * MIB) != CUDA_SUCCESS) usleep(100);
  return unused;
}
BY_NAME(primary_context_reset_meanwhile) {
  pthread_t t[3];
  start(t, 3, take_meanwhile, NULL);
  for (int i = 0; i < 100; i++) must(cuDevicePrimaryCtxReset_v2(device), "reset"), usleep(300);
  reset_enough = true;
  join(t, 3);
  fill();
}
static CUgraph graph_of_child(unsigned long bytes, CUgraphNode *node) {
  CUgraph graph;
  must(cuGraphCreate(&graph, 0), "graph");
  must(cuGraphAddChildGraphNode(node, graph, NULL, 0, with_node(bytes)), "child");
  return graph;
}
static CUgraphExec changed_exec;
static CUgraphNode changed_node;
static void *change_at_once(void *unused) {
  must(cuCtxSetCurrent(context), "context");
  for (int i = 0; i < 60; i++) {
    pthread_barrier_wait(&at_once);
    must(cuGraphExecChildGraphNodeSetParams(changed_exec, changed_node, with_node(500 * MIB)), "change");
    pthread_barrier_wait(&at_once);
  }
  return unused;
}
BY_NAME(graph_changed_while_it_is_launched) {
  pthread_t t;
  pthread_barrier_init(&at_once, NULL, 2);
  hold(700 * MIB);
  pthread_create(&t, NULL, change_at_once, NULL);
  for (int i = 0; i < 60; i++) {
    must(cuGraphInstantiateWithFlags(&changed_exec, graph_of_child(2 * MIB, &changed_node), 0), "instantiate");
    pthread_barrier_wait(&at_once);
    for (int k = 0; k < 10; k++) cuGraphLaunch(changed_exec, NULL);
    pthread_barrier_wait(&at_once);
    must(cuGraphExecDestroy(changed_exec), "destroy");
    cuDeviceGraphMemTrim(device);
  }
  pthread_join(t, NULL);
}
static void *graphs_by_one(void *unused) {
  must(cuCtxSetCurrent(context), "context");
  for (int i = 0; i < 200; i++) {
    CUgraphNode node;
    CUgraphExec exec;
    CUgraph graph = graph_of_child((i % 3 ? 4 : 200) * MIB, &node);
    must(cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
    cuGraphLaunch(exec, NULL);
    must(cuGraphExecDestroy(exec), "destroy");
    must(cuGraphDestroy(graph), "graph");
    if (i % 2) cuDeviceGraphMemTrim(device);
  }
  return unused;
}
BY_NAME(fits_graphs_by_threads) {
  size_t before = left();
  in_threads(6, graphs_by_one, NULL);
  must(cuDeviceGraphMemTrim(device), "trim");
  all_is_back(before);
}
static void *greens_by_one(void *unused) {
  CUdeviceptr p, q;
  CUcontext c;
  for (int i = 0; i < 150; i++) {
    CUgreenCtx green;
    if (cuGreenCtxCreate(&green, whole(), device, CU_GREEN_CTX_DEFAULT_STREAM) != CUDA_SUCCESS) continue;
    must(cuCtxFromGreenCtx(&c, green), "context");
    must(cuCtxPushCurrent_v2(c), "push");
    bool one = cuMemAlloc_v2(&p, 60 * MIB) == CUDA_SUCCESS, two = cuMemAlloc_v2(&q, 5000) == CUDA_SUCCESS;
    must(cuCtxPopCurrent_v2(&c), "pop");
    must(cuGreenCtxDestroy(green), "destroy");
    if (one) must(cuMemFree_v2(p), "free");
    if (two) must(cuMemFree_v2(q), "free");
  }
  return unused;
}
BY_NAME(fits_green_contexts_by_threads) {
  size_t before = left();
  in_threads(6, greens_by_one, NULL);
  all_is_back(before);
}
static void *primary_with_memory(void *unused) {
  CUcontext c;
  CUdeviceptr p;
  CUlibrary library;
  for (int i = 0; i < 150; i++) {
    if (cuDevicePrimaryCtxRetain(&c, device) != CUDA_SUCCESS) continue;
    must(cuCtxPushCurrent_v2(c), "push");
    bool one = cuMemAlloc_v2(&p, (i % 2 ? 5000 : 50 * MIB)) == CUDA_SUCCESS;
    if (i % 5 == 0 && cuLibraryLoadData(&library, library_text, NULL, NULL, 0, NULL, NULL, 0) == CUDA_SUCCESS)
      must(cuLibraryUnload(library), "unload");
    if (one && i % 3) must(cuMemFree_v2(p), "free");
    must(cuCtxPopCurrent_v2(&c), "pop");
    must(cuDevicePrimaryCtxRelease_v2(device), "release");
  }
  return unused;
}
BY_NAME(fits_primary_context_with_memory) {
  must(cuCtxCreate_v2(&context, 0, device), "context");
  must(cuDevicePrimaryCtxRelease_v2(device), "release");
  size_t before = left();
  in_threads(6, primary_with_memory, NULL);
  all_is_back(before);
}
static void *limits_by_one(void *unused) {
  CUcontext c;
  for (int i = 0; i < 200; i++) {
    if (cuCtxCreate_v2(&c, 0, device) != CUDA_SUCCESS) continue;
    cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, (20 + 30 * (size_t)(i % 3)) * MIB);
    cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 30 * MIB);
    if (i % 2) cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * MIB);
    must(cuCtxDestroy_v2(c), "destroy");
  }
  return unused;
}
BY_NAME(fits_limits_by_threads) {
  size_t before = left();
  hold(900 * MIB);
  in_threads(6, limits_by_one, NULL);
  all_is_back(before - 900 * MIB);
}
static void *pools_trimmed_by_one(void *unused) {
  must(cuCtxSetCurrent(context), "context");
  for (int i = 0; i < 150; i++) {
    CUmemoryPool pool = pool_on(CU_MEM_LOCATION_TYPE_DEVICE);
    CUdeviceptr p, q;
    bool one = cuMemAllocFromPoolAsync(&p, 40 * MIB, pool, NULL) == CUDA_SUCCESS;
    if (one && i % 2) must(cuMemFreeAsync(p, NULL), "free");
    cuMemPoolTrimTo(pool, 0);
    bool two = cuMemAllocFromPoolAsync(&q, 3 * MIB, pool, NULL) == CUDA_SUCCESS;
    must(cuMemPoolDestroy(pool), "destroy");
    if (one && i % 2 == 0) must(cuMemFreeAsync(p, NULL), "free");
    if (two) must(cuMemFreeAsync(q, NULL), "free");
  }
  return unused;
}
BY_NAME(fits_pools_by_threads) {
  size_t before = left();
  hold(800 * MIB);
  in_threads(6, pools_trimmed_by_one, NULL);
  must(cuCtxSynchronize(), "synchronise");
  all_is_back(before - 800 * MIB);
}
static void *streams_by_one(void *unused) {
  CUcontext c;
  for (int i = 0; i < 100; i++) {
    CUstream s[3];
    CUmodule m;
    CUfunction f;
    CUdeviceptr p;
    if (cuCtxCreate_v2(&c, 0, device) != CUDA_SUCCESS) continue;
    must(cuModuleLoadData(&m, ".global .b8 a[3000000];"), "module");
    must(cuModuleGetFunction(&f, m, "spin_20us"), "function");
    for (int k = 0; k < 3; k++) {
      must(cuStreamCreate(&s[k], k % 2), "stream");
      for (int n = 0; n < 5; n++) must(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s[k], NULL, NULL), "launch");
      if (cuMemAlloc_v2(&p, 2 * MIB) == CUDA_SUCCESS) must(cuMemFreeAsync(p, s[k]), "free");
    }
    must(cuStreamDestroy_v2(s[0]), "stream");
    must(cuCtxDestroy_v2(c), "destroy");
  }
  return unused;
}
BY_NAME(fits_streams_beside_contexts) {
  size_t before = left();
  in_threads(6, streams_by_one, NULL);
  all_is_back(before);
}
static void *exports_by_one(void *unused) {
  const CUmemAllocationHandleType by_descriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  must(cuCtxSetCurrent(context), "context");
  for (int i = 0; i < 60; i++) {
    CUmemGenericAllocationHandle h, again;
    int fd;
    if (make(&h, 30 * MIB) != CUDA_SUCCESS) continue;
    if (cuMemExportToShareableHandle(&fd, h, by_descriptor, 0) == CUDA_SUCCESS) {
      must(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)fd, by_descriptor), "import");
      must(cuMemRelease(again), "release");
      close(fd);
    }
    must(cuMemRelease(h), "release");
  }
  return unused;
}
BY_NAME(fits_exports_by_threads) {
  size_t before = left();
  in_threads(6, exports_by_one, NULL);
  all_is_back(before);
}
static CUmemoryPool made_again;
static atomic_bool made_enough;
static void *make_pools_again(void *unused) {
  must(cuCtxSetCurrent(context), "context");
  for (int i = 0; i < 300; i++) {
    made_again = pool_on(CU_MEM_LOCATION_TYPE_DEVICE);
    cuMemPoolDestroy(made_again);
  }
  made_enough = true;
  return unused;
}
/* What is allocated from a pool may come from the next one of its handle. */
BY_NAME(pool_made_again_meanwhile) {
  pthread_t t;
  CUdeviceptr p[3];
  made_again = pool_on(CU_MEM_LOCATION_TYPE_DEVICE);
  pthread_create(&t, NULL, make_pools_again, NULL);
  while (!made_enough) {
    int n = 0;
    for (int i = 0; i < 3; i++) n += cuMemAllocFromPoolAsync(&p[n], 300 * MIB, made_again, NULL) == CUDA_SUCCESS;
    if (n && cuMemAlloc_v2(&p[2], 500 * MIB) == CUDA_SUCCESS) cuMemFree_v2(p[2]);
    for (int i = 0; i < n; i++) cuMemFreeAsync(p[i], NULL);
  }
  pthread_join(t, NULL);
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  unsigned long (*driver_peak)(int);
  *(void **)&driver_peak = dlsym(RTLD_DEFAULT, "skfPeak");
  if (!strcmp(what, "list")) list_names();
  const struct by_name *way = find_by_name(what);
  if (way) {
    context = open_gpu();
    must(cuCtxGetDevice(&device), "device");
    must(cuDeviceTotalMem_v2(&cap, device), "total");
    way->go();
    printf("{\"tried\": %d, \"granted\": %d, \"peak\": %lu, \"cap\": %zu}\n", tried, granted,
           driver_peak ? driver_peak(0) : 0, cap);
  }
  return 0;
}
