/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory the global variables of a module take. An image comes without its length: PTX
 * ends with a zero, a cubin (an ELF file) says where its sections are, and the driver reads both
 * the same way.
 */
#include "image.h"
#include "os.h"

#include <elf.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FATBIN_WRAPPER 0x466243b1u
#define FATBIN 0xba55ed50u
#define ALIGNED 512u

static uint64_t add(uint64_t sum, uint64_t bytes) {
  bytes = bytes > UINT64_MAX - ALIGNED ? UINT64_MAX : (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
  return sum > UINT64_MAX - bytes ? UINT64_MAX : sum + bytes;
}

static uint64_t times(uint64_t a, uint64_t b) {
  return b && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

/* ---- PTX ---- */

static uint64_t number(const char **at) {
  uint64_t value = 0;
  while (**at >= '0' && **at <= '9') value = value * 10 + (uint64_t)(*(*at)++ - '0');
  return value;
}

static bool wordy(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static uint64_t bytes_of_type(const char *at) {
  while (*at >= 'a' && *at <= 'z') at++;
  uint64_t bits = number(&at);
  return bits > 8 ? bits / 8 : 1;
}

/* From behind ".global": qualifiers, a type, a name, dimensions; several names by commas. Ends at
 * the semicolon or at an initial value. */
static uint64_t declared(const char **from) {
  uint64_t element = 4, vector = 1, count = 1, sum = 0;
  const char *at = *from;
  for (; *at && *at != ';' && *at != '='; at++) {
    if (*at == '[') {
      at++;
      uint64_t n = number(&at);
      count = times(count, n ? n : 1);
      if (!*at) break;
    } else if (*at == ',') {
      sum = add(sum, times(times(element, vector), count));
      count = 1;
    } else if (*at == '.' && !strncmp(at, ".align", 6)) {
      at += 6;
      while (*at == ' ') at++;
      number(&at);
      at--;
    } else if (*at == '.' && at[1] == 'v' && at[2] >= '2' && at[2] <= '8' && !wordy(at[3])) {
      vector = (uint64_t)(at[2] - '0');
      at += 2;
    } else if (*at == '.') {
      element = bytes_of_type(at + 1);
      while (wordy(at[1])) at++;
    }
  }
  *from = at;
  return add(sum, times(times(element, vector), count));
}

static const char *skip_blanks(const char *at) {
  while (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n') at++;
  return at;
}

static bool starts(const char *at, const char *word) {
  size_t n = strlen(word);
  return !strncmp(at, word, n) && !wordy(at[n]);
}

/* To what follows a statement, or a directive without a semicolon, or a comment. */
static const char *skip_statement(const char *at) {
  if (!strncmp(at, "/*", 2)) {
    const char *end = strstr(at + 2, "*/");
    return end ? end + 2 : at + strlen(at);
  }
  if (!strncmp(at, "//", 2)) return at + strcspn(at, "\n");
  at += strcspn(at, ";{}\n");
  return *at ? at + 1 : at;
}

static uint64_t in_text(const char *text) {
  static const char *const before[] = {".visible", ".extern", ".weak", ".common"};
  uint64_t sum = 0;
  for (const char *at = skip_blanks(text); *at; at = skip_blanks(skip_statement(at))) {
    for (unsigned i = 0; i < sizeof before / sizeof *before; i++)
      if (starts(at, before[i])) at = skip_blanks(at + strlen(before[i]));
    if (!starts(at, ".global")) continue;
    at += strlen(".global");
    sum = add(sum, declared(&at));
  }
  return sum;
}

/* ---- cubin ---- */

static bool named(const char *name, const char *prefix) {
  size_t n = strlen(prefix);
  return !strncmp(name, prefix, n) && (!name[n] || name[n] == '.');
}

static uint64_t in_elf(const unsigned char *image) {
  const Elf64_Ehdr *head = (const void *)image;
  const Elf64_Shdr *section = (const void *)(image + head->e_shoff);
  uint64_t sum = 0;
  if (head->e_ident[EI_CLASS] != ELFCLASS64 || !head->e_shoff || head->e_shstrndx >= head->e_shnum)
    return 0;
  const char *names = (const char *)image + section[head->e_shstrndx].sh_offset;
  for (int i = 0; i < head->e_shnum; i++) {
    const char *name = names + section[i].sh_name;
    if (named(name, ".nv.global") || named(name, ".nv.global.init"))
      sum = add(sum, section[i].sh_size);
  }
  return sum;
}

uint64_t vc_image_globals(const void *image) {
  uint32_t magic;
  if (!image) return 0;
  const unsigned char *bytes = image;
  if (!memchr(bytes, 0, 4)) {
    memcpy(&magic, image, sizeof magic);
    if (!memcmp(bytes, ELFMAG, SELFMAG)) return in_elf(bytes);
    if (magic == FATBIN_WRAPPER || magic == FATBIN) return 0;
  }
  return in_text(image);
}

uint64_t vc_image_file(const char *path) {
  uint64_t sum = 0;
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
  /* Zeroes behind it, so that a text has its end. */
  char *at = size > 64 ? malloc((size_t)size + 8) : NULL;
  if (at && pread(fd, at, (size_t)size, 0) == size) {
    memset(at + size, 0, 8);
    sum = vc_image_globals(at);
  }
  free(at);
  if (fd >= 0) close(fd);
  return sum;
}
