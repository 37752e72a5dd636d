/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Find dlsym without dlsym. We export a dlsym of our own, so the real one must be found another
 * way; dlvsym would do on glibc, but musl has none. Reading the symbol tables works on both.
 */
#define _GNU_SOURCE
#include "symbols.h"
#include "compat.h"
#include "text.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>

struct search {
  const char *symbol;
  void *found;
};

struct tables {
  const ElfW(Sym) * symbols;
  const char *strings;
  const uint32_t *gnu, *sysv;
};

static const char here;

/* glibc relocates these addresses in place, musl and the vDSO do not. */
static const void *address(const struct dl_phdr_info *info, ElfW(Addr) value) {
  return (const void *)(value < info->dlpi_addr ? info->dlpi_addr + value : value);
}

static uint32_t gnu_count(const uint32_t *gnu) {
  uint32_t buckets = gnu[0], first = gnu[1], bloom = gnu[2], last = 0;
  const uint32_t *bucket = gnu + 4 + bloom * (sizeof(ElfW(Addr)) / 4);
  const uint32_t *chain = bucket + buckets;
  for (uint32_t i = 0; i < buckets; i++)
    if (bucket[i] > last) last = bucket[i];
  if (last < first) return first;
  while (!(chain[last - first] & 1)) last++;
  return last + 1;
}

static struct tables read_dynamic(const struct dl_phdr_info *info, const ElfW(Dyn) * d) {
  struct tables t = {0};
  for (; d->d_tag != DT_NULL; d++) {
    const void *at = address(info, d->d_un.d_ptr);
    if (d->d_tag == DT_SYMTAB) t.symbols = at;
    if (d->d_tag == DT_STRTAB) t.strings = at;
    if (d->d_tag == DT_GNU_HASH) t.gnu = at;
    if (d->d_tag == DT_HASH) t.sysv = at;
  }
  return t;
}

static int visit(struct dl_phdr_info *info, size_t size, void *data) {
  struct search *s = data;
  const ElfW(Dyn) *dynamic = NULL;
  (void)size;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *p = &info->dlpi_phdr[i];
    ElfW(Addr) start = info->dlpi_addr + p->p_vaddr;
    if (p->p_type == PT_DYNAMIC) dynamic = (const void *)start;
    if (p->p_type == PT_LOAD && (uintptr_t)&here - start < p->p_memsz) return 0;
  }
  if (!dynamic) return 0;
  struct tables t = read_dynamic(info, dynamic);
  if (!t.symbols || !t.strings || (!t.gnu && !t.sysv)) return 0;
  uint32_t count = t.gnu ? gnu_count(t.gnu) : t.sysv[1];
  for (uint32_t i = 0; i < count; i++) {
    const ElfW(Sym) *y = &t.symbols[i];
    if (y->st_shndx == SHN_UNDEF || ELF64_ST_TYPE(y->st_info) != STT_FUNC) continue;
    if (vc_text_order(t.strings + y->st_name, s->symbol)) continue;
    s->found = (void *)(info->dlpi_addr + y->st_value);
    return 1;
  }
  return 0;
}

void *vc_symbols_find(const char *symbol) {
  struct search s = {symbol, NULL};
  dl_iterate_phdr(visit, &s);
  return s.found;
}
