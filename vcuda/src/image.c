/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory the global variables of a module take. An image comes without its length: PTX
 * ends with a zero, a cubin (an ELF file) says where its sections are, a fat binary how long it is,
 * and the driver reads them the same way. What is compressed in a fat binary is not looked into.
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

/* Do `count` things of `each` bytes lie at this offset? */
static bool inside(uint64_t offset, uint64_t count, uint64_t each, uint64_t size) {
  return offset <= size && times(count, each) <= size - offset;
}

/* The name ends with the section of names, which ends with a zero. */
static bool names_inside(const unsigned char *image, const Elf64_Shdr *names, uint64_t size) {
  return names->sh_size && inside(names->sh_offset, names->sh_size, 1, size) &&
         !image[names->sh_offset + names->sh_size - 1];
}

static uint64_t in_elf(const unsigned char *image, uint64_t size) {
  Elf64_Ehdr head;
  Elf64_Shdr names, section;
  uint64_t sum = 0;
  if (size < sizeof head) return 0;
  memcpy(&head, image, sizeof head);
  if (head.e_ident[EI_CLASS] != ELFCLASS64 || !head.e_shoff || head.e_shstrndx >= head.e_shnum ||
      !inside(head.e_shoff, head.e_shnum, sizeof section, size))
    return 0;
  const unsigned char *sections = image + head.e_shoff;
  memcpy(&names, sections + head.e_shstrndx * sizeof names, sizeof names);
  if (!names_inside(image, &names, size)) return 0;
  for (int i = 0; i < head.e_shnum; i++) {
    memcpy(&section, sections + (size_t)i * sizeof section, sizeof section);
    if (section.sh_name >= names.sh_size) continue;
    const char *name = (const char *)image + names.sh_offset + section.sh_name;
    if (named(name, ".nv.global") || named(name, ".nv.global.init"))
      sum = add(sum, section.sh_size);
  }
  return sum;
}

/* ---- fat binaries: what nvcc's programs load, an image for each architecture ---- */

struct fat {
  uint32_t magic;
  uint16_t version, header;
  uint64_t size; /* of all entries */
};

struct fat_entry {
  uint16_t kind, version;
  uint32_t header;
  uint64_t size;
  uint32_t compressed; /* 0: it is not */
};

struct fat_wrapper {
  uint32_t magic, version;
  const unsigned char *data;
};

/* Reads no further than the first byte that differs: a text may be shorter. No magic number has a zero. */
static bool begins(const void *image, uint32_t magic) {
  return !strncmp(image, (const char *)&magic, sizeof magic);
}

/* A text or a cubin of at most so many bytes; a text ends with a zero before. */
static uint64_t in_single(const unsigned char *image, uint64_t size) {
  if (size < SELFMAG) return 0;
  if (!strncmp((const char *)image, ELFMAG, SELFMAG)) return in_elf(image, size);
  return size == UINT64_MAX || memchr(image, 0, size) ? in_text((const char *)image) : 0;
}

/* One of the images is loaded: the largest counts. None is a fat binary itself. */
static uint64_t in_fat(const unsigned char *image, uint64_t size) {
  struct fat fat;
  struct fat_entry entry;
  uint64_t most = 0;
  memcpy(&fat, image, sizeof fat);
  if (!inside(fat.header, fat.size, 1, size)) return 0;
  const unsigned char *at = image + fat.header;
  for (uint64_t left = fat.size; left > sizeof entry; left -= entry.size, at += entry.size) {
    memcpy(&entry, at, sizeof entry);
    if (entry.header < sizeof entry || !inside(entry.header, entry.size, 1, left)) break;
    left -= entry.header;
    at += entry.header;
    uint64_t bytes = entry.compressed ? 0 : in_single(at, entry.size);
    if (bytes > most) most = bytes;
  }
  return most;
}

static uint64_t in_image(const unsigned char *image, uint64_t size) {
  return size >= sizeof(struct fat) && begins(image, FATBIN) ? in_fat(image, size) : in_single(image, size);
}

uint64_t vc_image_globals(const void *image) {
  struct fat_wrapper wrapper;
  if (image && begins(image, FATBIN_WRAPPER)) {
    memcpy(&wrapper, image, sizeof wrapper);
    image = wrapper.data;
  }
  return image ? in_image(image, UINT64_MAX) : 0;
}

uint64_t vc_image_file(const char *path) {
  uint64_t sum = 0;
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
  /* Zeroes behind it, so that a text has its end. */
  char *at = size > 0 ? malloc((size_t)size + 8) : NULL;
  if (at && pread(fd, at, (size_t)size, 0) == size) {
    memset(at + size, 0, 8);
    sum = in_image((const unsigned char *)at, (uint64_t)size + 8);
  }
  free(at);
  if (fd >= 0) close(fd);
  return sum;
}
