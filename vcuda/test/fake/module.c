/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a context holds besides the program's own requests: the global variables of modules, stacks
 * (local memory), the device's heap, the buffer of its printf.
 *
 * An image is text, with global variables and kernels declared as in PTX: .global .align 8 .b8 name[4096];
 * and .entry name (any other name is a kernel of it too, but is not listed); or a
 * cubin, an ELF file with sections .nv.global; or a fat binary of both, whose last cubin is loaded.
 * The documents do not say when they take their memory: with SLICEKEEPER_FAKE_LAZY=1 it is when the
 * module is first asked for something, else when it is loaded. A module is its context's; a library is in every context
 * that uses it, or, if it is loaded at once, in all of them, those made later too.
 */
#define _GNU_SOURCE
#include "api.h"

#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define THREADS (2048ull * 132) /* that can be resident; each has its stack */
#define STACK_DEFAULT 1024
#define HEAP_DEFAULT (8ull << 20)
#define FIFO_DEFAULT (1ull << 20)

struct global {
  struct global *next;
  char name[128];
  uint64_t bytes;
  void *address;
};

/* The contexts that have its variables. */
struct place {
  struct place *next;
  CUcontext ctx;
  unsigned life;
};

struct CUmod_st {
  struct CUmod_st *next; /* all that are loaded */
  CUcontext ctx; /* a module's; a library, which has none, is in each context that uses it */
  struct place *places;
  uint64_t bytes;
  bool asked; /* for something in it */
  struct global *globals;
  unsigned entries;
  char (*entry)[128];
};

static struct CUmod_st *loaded; /* changed while contexts are held, as are the places of each */

/* ---- modules ---- */

static uint64_t width_of(const char *type) {
  const char *digits = type + strcspn(type, "0123456789");
  uint64_t bits = strtoull(digits, NULL, 10);
  return *type == 'p' ? 1 : bits < 8 ? 1 : bits / 8;
}

/* One declaration, from behind ".global" to its semicolon. */
static struct global *declaration(const char *from, const char *to) {
  struct global *g = calloc(1, sizeof *g);
  g->bytes = 4;
  for (const char *at = from; at < to && *at != '=';) {
    if (!strncmp(at, ".align", 6)) {
      at += 6;
      while (*at == ' ' || (*at >= '0' && *at <= '9')) at++;
    } else if (at[0] == '.' && at[1] == 'v' && at[2] >= '2' && at[2] <= '4') {
      g->bytes *= (uint64_t)(at[2] - '0');
      at += 3;
    } else if (*at == '.') {
      g->bytes = width_of(at + 1);
      at++;
      while ((*at >= 'a' && *at <= 'z') || (*at >= '0' && *at <= '9')) at++;
    } else if (*at == '[') {
      char *end;
      uint64_t count = strtoull(at + 1, &end, 10);
      g->bytes *= count ? count : 1;
      at = end;
    } else if (strchr(" \t\n],", *at)) {
      at++;
    } else {
      size_t n = strcspn(at, " \t\n[;=,");
      snprintf(g->name, sizeof g->name, "%.*s", (int)n, at);
      at += n ? n : 1;
    }
  }
  return g;
}

static void read_text(struct CUmod_st *m, const char *image) {
  for (const char *at = strstr(image, ".global"); at; at = strstr(at, ".global")) {
    const char *end = strchr(at, ';');
    if (!end) break;
    struct global *g = declaration(at + 7, end);
    g->next = m->globals;
    m->globals = g;
    m->bytes += (g->bytes + 511) / 512 * 512;
    at = end;
  }
}

static void read_entries(struct CUmod_st *m, const char *image) {
  for (const char *at = strstr(image, ".entry "); at; at = strstr(at, ".entry ")) {
    at += 7;
    m->entry = realloc(m->entry, (m->entries + 1) * sizeof *m->entry);
    snprintf(m->entry[m->entries++], sizeof *m->entry, "%.*s", (int)strcspn(at, " (\n"), at);
  }
}

const char *fk_module_entry(void *module, unsigned number) {
  const struct CUmod_st *m = module;
  return number < m->entries ? m->entry[number] : NULL;
}

static void read_cubin(struct CUmod_st *m, const char *image) {
  const Elf64_Ehdr *head = (const void *)image;
  const Elf64_Shdr *section = (const void *)(image + head->e_shoff);
  const char *names = image + section[head->e_shstrndx].sh_offset;
  for (int i = 1; i < head->e_shnum; i++)
    if (!strncmp(names + section[i].sh_name, ".nv.global", 10))
      m->bytes += (section[i].sh_size + 511) / 512 * 512;
}

static uint64_t number(const char *at, size_t size) {
  uint64_t value = 0;
  memcpy(&value, at, size);
  return value;
}

/* Header: magic, 16 bits of version, 16 of the header's size, 64 of all that follows. Entry: 16 bits of
 * kind (2: cubin), 16 of version, 32 of the entry's header's size, 64 of the image's. */
static const char *cubin_of(const char *fat) {
  const char *last = NULL, *at = fat + number(fat + 6, 2), *end = at + number(fat + 8, 8);
  while (at < end) {
    const char *image = at + number(at + 4, 4);
    if (number(at, 2) == 2) last = image;
    at = image + number(at + 8, 8);
  }
  return last;
}

static struct CUmod_st *parse(const char *image) {
  struct CUmod_st *m = fk_new(sizeof *m);
  /* The runtime's wrapper. */
  if (!memcmp(image, "\xb1\x43\x62\x46", 4)) memcpy(&image, image + 8, sizeof image);
  if (!memcmp(image, "\x50\xed\x55\xba", 4)) image = cubin_of(image);
  if (image && !memcmp(image, ELFMAG, SELFMAG))
    read_cubin(m, image);
  else if (image)
    read_text(m, image), read_entries(m, image);
  return m;
}

static bool lives(const struct place *p) {
  return !p->ctx->dead && p->ctx->life == p->life;
}

static CUresult use_in(struct CUmod_st *m, CUcontext ctx) {
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  for (const struct place *p = m->places; p; p = p->next)
    if (p->ctx == ctx && lives(p)) return CUDA_SUCCESS;
  struct place place = {.next = m->places, .ctx = ctx};
  if (!fk_take(ctx, m->bytes, &place.life)) return CUDA_ERROR_OUT_OF_MEMORY;
  struct place *p = calloc(1, sizeof *p);
  *p = place;
  m->places = p;
  return CUDA_SUCCESS;
}

static bool lazy(void) {
  return fk_bytes(fk_setting("LAZY"), 0);
}

/* To load a kernel may mean to wait for the context's work. */
static void wait_to_load(bool now) {
  CUcontext ctx = fk_current();
  if (now && ctx) fk_wait_context(ctx);
}

CUresult fk_module_use(void *module, CUcontext ctx) {
  struct CUmod_st *m = module;
  if (!m) return CUDA_ERROR_INVALID_HANDLE;
  if (lazy() && !m->asked) wait_to_load(true);
  m->asked = true;
  if (!m->bytes) return CUDA_SUCCESS;
  fk_contexts_hold();
  CUresult r = use_in(m, m->ctx ? m->ctx : ctx);
  fk_contexts_let_go();
  return r;
}

/* If modules are not loaded lazily, a new context has all libraries in it from the start. */
CUresult fk_libraries_use(CUcontext ctx) {
  CUresult r = CUDA_SUCCESS;
  for (struct CUmod_st *m = lazy() ? NULL : loaded; m && r == CUDA_SUCCESS; m = m->next)
    if (!m->ctx && m->bytes) r = use_in(m, ctx);
  return r;
}

static void unload(struct CUmod_st *m) {
  struct CUmod_st **at = &loaded;
  while (*at && *at != m) at = &(*at)->next;
  if (*at) *at = m->next;
  for (struct place *p = m->places, *next; p; p = next) {
    next = p->next;
    fk_give(p->ctx, m->bytes, p->life);
    free(p);
  }
  while (m->globals) {
    struct global *g = m->globals;
    m->globals = g->next;
    if (g->address) fk_unmap(g->address, g->bytes);
    free(g);
  }
  free(m->entry);
  fk_gone(m, sizeof *m);
}

static struct CUmod_st *eager;

static CUresult use_eagerly(CUcontext ctx) {
  return eager->bytes ? use_in(eager, ctx) : CUDA_SUCCESS;
}

static CUresult load(void **out, const void *image, CUcontext ctx) {
  if (!image || !out) return CUDA_ERROR_INVALID_VALUE;
  wait_to_load(!lazy());
  struct CUmod_st *m = parse(image);
  m->ctx = ctx;
  CUresult r = CUDA_SUCCESS;
  fk_contexts_hold();
  eager = m;
  if (!lazy()) r = ctx ? use_eagerly(ctx) : fk_each_context(use_eagerly);
  if (r == CUDA_SUCCESS) {
    m->next = loaded;
    loaded = m;
    *out = m;
  } else {
    unload(m);
  }
  fk_contexts_let_go();
  return r;
}

FK_API(cuModuleLoadData, (CUmodule * out, const void *image)) {
  FK_ENTER("cuModuleLoadData");
  return fk_current() ? load((void **)out, image, fk_current()) : CUDA_ERROR_INVALID_CONTEXT;
}
FK_RESULT(cuModuleLoadDataEx, (CUmodule * out, const void *image, unsigned n, CUjit_option *o, void **v),
          ((void)n, (void)o, (void)v, cuModuleLoadData(out, image)))
FK_RESULT(cuModuleLoadFatBinary, (CUmodule * out, const void *image), cuModuleLoadData(out, image))

/* With a zero behind it. */
static char *read_all(const char *path) {
  struct stat found;
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  char *image = fd >= 0 && !fstat(fd, &found) ? calloc(1, (size_t)found.st_size + 8) : NULL;
  if (image && read(fd, image, (size_t)found.st_size) != found.st_size) {
    free(image);
    image = NULL;
  }
  if (fd >= 0) close(fd);
  return image;
}

FK_API(cuModuleLoad, (CUmodule * out, const char *path)) {
  char *text = read_all(path);
  if (!text) return CUDA_ERROR_FILE_NOT_FOUND;
  CUresult r = cuModuleLoadData(out, text);
  free(text);
  return r;
}
FK_API(cuModuleUnload, (CUmodule module)) {
  FK_LATE;
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  fk_contexts_hold();
  unload((struct CUmod_st *)module);
  fk_contexts_let_go();
  return CUDA_SUCCESS;
}

static CUresult global_of(CUdeviceptr *out, size_t *bytes, void *module, const char *name) {
  CUresult r = fk_module_use(module, fk_current());
  for (struct global *g = r ? NULL : ((struct CUmod_st *)module)->globals; g; g = g->next) {
    if (strcmp(g->name, name)) continue;
    if (!g->address) g->address = fk_map(g->bytes);
    if (out) *out = (CUdeviceptr)g->address;
    if (bytes) *bytes = g->bytes;
    return CUDA_SUCCESS;
  }
  return r ? r : CUDA_ERROR_NOT_FOUND;
}
FK_RESULT(cuModuleGetGlobal_v2, (CUdeviceptr * out, size_t *bytes, CUmodule module, const char *name),
          global_of(out, bytes, module, name))
FK_RESULT(cuLibraryGetGlobal, (CUdeviceptr * out, size_t *bytes, CUlibrary library, const char *name),
          global_of(out, bytes, library, name))

FK_API(cuLibraryLoadData, (CUlibrary * out, const void *image, CUjit_option *jo, void **jv,
                           unsigned jn, CUlibraryOption *lo, void **lv, unsigned ln)) {
  FK_LATE;
  (void)jo, (void)jv, (void)jn, (void)lo, (void)lv, (void)ln;
  return load((void **)out, image, NULL);
}
FK_API(cuLibraryLoadFromFile, (CUlibrary * out, const char *path, CUjit_option *jo, void **jv,
                               unsigned jn, CUlibraryOption *lo, void **lv, unsigned ln)) {
  char *text = read_all(path);
  if (!text) return CUDA_ERROR_FILE_NOT_FOUND;
  CUresult r = cuLibraryLoadData(out, text, jo, jv, jn, lo, lv, ln);
  free(text);
  return r;
}
FK_RESULT(cuLibraryUnload, (CUlibrary library), cuModuleUnload((CUmodule)library))
FK_API(cuLibraryGetModule, (CUmodule * out, CUlibrary library)) {
  *out = (CUmodule)library;
  return fk_module_use(library, fk_current());
}

/* ---- a context's limits ---- */

static bool change(CUcontext ctx, uint64_t now, uint64_t then) {
  unsigned life;
  if (then > now) return fk_take(ctx, then - now, &life);
  if (then < now) fk_give(ctx, now - then, ctx->life);
  return true;
}

/* The stacks of all resident threads lie on the device, and a kernel that needs more makes them
 * grow. They do not shrink behind a launch. */
static CUresult set_stack(CUcontext ctx, uint64_t bytes) {
  uint64_t now = ctx->stack > STACK_DEFAULT ? (ctx->stack - STACK_DEFAULT) * THREADS : 0;
  uint64_t then = bytes > STACK_DEFAULT ? (bytes - STACK_DEFAULT) * THREADS : 0;
  if (!change(ctx, fk_granules(now), fk_granules(then))) return CUDA_ERROR_OUT_OF_MEMORY;
  ctx->stack = bytes;
  return CUDA_SUCCESS;
}

FK_GUARD(limits)

CUresult fk_local(CUcontext ctx, uint64_t bytes) {
  pthread_mutex_lock(&limits);
  CUresult r = bytes > ctx->stack && bytes > STACK_DEFAULT ? set_stack(ctx, bytes) : CUDA_SUCCESS;
  pthread_mutex_unlock(&limits);
  return r;
}

/* The heap, or the buffer of printf. */
static CUresult set_area(CUcontext ctx, uint64_t *limit, uint64_t usual, uint64_t each, uint64_t bytes) {
  uint64_t now = *limit > usual ? fk_granules((*limit - usual) * each) : 0;
  uint64_t then = bytes > usual ? fk_granules((bytes - usual) * each) : 0;
  if (!change(ctx, now, then)) return CUDA_ERROR_OUT_OF_MEMORY;
  *limit = bytes;
  return CUDA_SUCCESS;
}

#define DEPTH_DEFAULT 2
#define DEPTH_BYTES (150ull << 20) /* what a level of kernels that wait for kernels takes */
#define PENDING_DEFAULT 2048
#define PENDING_BYTES 1024ull

/* Kernels no longer wait for kernels that they launched. */
static bool lacks(CUlimit limit) {
  return limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH && fk_capability() >= 9;
}

FK_API(cuCtxGetLimit, (size_t * value, CUlimit limit)) {
  CUcontext ctx = fk_current();
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  if (lacks(limit)) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  if (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH) {
    *value = ctx->depth ? ctx->depth : DEPTH_DEFAULT;
    return CUDA_SUCCESS;
  }
  if (limit == CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT) {
    *value = ctx->pending ? ctx->pending : PENDING_DEFAULT;
    return CUDA_SUCCESS;
  }
  *value = limit == CU_LIMIT_STACK_SIZE         ? (ctx->stack ? ctx->stack : STACK_DEFAULT)
           : limit == CU_LIMIT_MALLOC_HEAP_SIZE ? (ctx->heap ? ctx->heap : HEAP_DEFAULT)
           : limit == CU_LIMIT_PRINTF_FIFO_SIZE ? (ctx->fifo ? ctx->fifo : FIFO_DEFAULT)
                                                : 0;
  return CUDA_SUCCESS;
}

static CUresult set_limit(CUcontext ctx, CUlimit limit, size_t value) {
  if (value > 1ull << 42) return CUDA_ERROR_INVALID_VALUE;
  if (limit == CU_LIMIT_STACK_SIZE)
    return value > 512 << 10 ? CUDA_ERROR_INVALID_VALUE : set_stack(ctx, value);
  switch (limit) {
  case CU_LIMIT_MALLOC_HEAP_SIZE:
    return set_area(ctx, &ctx->heap, HEAP_DEFAULT, 1, value);
  case CU_LIMIT_PRINTF_FIFO_SIZE:
    return set_area(ctx, &ctx->fifo, FIFO_DEFAULT, 1, value);
  case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
    if (value > 24) return CUDA_ERROR_INVALID_VALUE;
    return set_area(ctx, &ctx->depth, DEPTH_DEFAULT, DEPTH_BYTES, value);
  case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
    return value > 1u << 30 ? CUDA_ERROR_INVALID_VALUE
                            : set_area(ctx, &ctx->pending, PENDING_DEFAULT, PENDING_BYTES, value);
  default:
    return CUDA_SUCCESS;
  }
}

FK_API(cuCtxSetLimit, (CUlimit limit, size_t value)) {
  FK_ENTER("cuCtxSetLimit");
  CUcontext ctx = fk_current();
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  if (lacks(limit)) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  pthread_mutex_lock(&limits);
  CUresult r = set_limit(ctx, limit, value);
  pthread_mutex_unlock(&limits);
  return r;
}
