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

static uint64_t plus(uint64_t a, uint64_t b) {
  return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t add(uint64_t sum, uint64_t bytes) {
  return plus(sum, bytes > UINT64_MAX - ALIGNED ? UINT64_MAX : (bytes + ALIGNED - 1) / ALIGNED * ALIGNED);
}

static uint64_t times(uint64_t a, uint64_t b) {
  return b && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

/* ---- PTX ---- */

static bool wordy(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static const char *skip_string(const char *at) {
  for (at++; *at && *at != '"' && *at != '\n'; at++)
    if (*at == '\\' && at[1]) at++;
  return *at ? at + 1 : at;
}

/* Past blanks, newlines, which mean no more, comments, and the names of files. */
static const char *skip(const char *at) {
  for (;;) {
    if (*at == ' ' || (*at >= '\t' && *at <= '\r')) {
      at++;
    } else if (!strncmp(at, "//", 2)) {
      at += strcspn(at, "\n");
    } else if (!strncmp(at, "/*", 2)) {
      const char *end = strstr(at + 2, "*/");
      at = end ? end + 2 : at + strlen(at);
    } else if (*at == '"') {
      at = skip_string(at);
    } else {
      return at;
    }
  }
}

static int digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : 99;
}

/* As in C: decimal, octal, hexadecimal or binary. */
static uint64_t number(const char **at) {
  uint64_t value = 0;
  int base = 10;
  if (**at == '0') {
    char kind = (char)((*at)[1] | 32);
    base = kind == 'x' ? 16 : kind == 'b' ? 2 : 8;
    *at += base == 8 ? 1 : 2;
  }
  for (; digit(**at) < base; ++*at) {
    value = times(value, (uint64_t)base);
    value = plus(value, (uint64_t)digit(**at));
  }
  if (**at == 'U') ++*at;
  return value;
}

static int rank(const char *at) {
  if (*at == '*' || *at == '/' || *at == '%') return 3;
  if (*at == '+' || *at == '-') return 2;
  return !strncmp(at, "<<", 2) || !strncmp(at, ">>", 2);
}

static uint64_t apply(char op, uint64_t a, uint64_t b) {
  switch (op) {
  case '*':
    return times(a, b);
  case '/':
    return b ? a / b : a;
  case '%':
    return b ? a % b : a;
  case '+':
    return plus(a, b);
  case '-':
    return a > b ? a - b : 0;
  case '<':
    return !a ? 0 : b < 64 ? times(a, 1ull << b) : UINT64_MAX;
  default:
    return b < 64 ? a >> b : 0;
  }
}

/* A dimension is a constant expression. Parentheses deeper than a program writes them end it. */
static uint64_t expression(const char **at, int least, int depth) {
  uint64_t value;
  *at = skip(*at);
  if (**at == '(' && depth) {
    ++*at;
    value = expression(at, 1, depth - 1);
    *at = skip(*at);
    if (**at == ')') ++*at;
  } else {
    value = number(at);
  }
  for (;;) {
    *at = skip(*at);
    char op = **at;
    int mine = rank(*at);
    if (!mine || mine < least) return value;
    *at += mine == 1 ? 2 : 1;
    value = apply(op, value, expression(at, mine + 1, depth));
  }
}

static uint64_t bytes_of_type(const char *at) {
  while (*at >= 'a' && *at <= 'z') at++;
  uint64_t bits = number(&at);
  return bits > 8 ? bits / 8 : 1;
}

/* How many values an initial value has; past it. */
static uint64_t values(const char **from) {
  uint64_t count = 1;
  int depth = 0;
  const char *at = skip(*from);
  for (; *at && *at != ';' && (depth || *at != ','); at = skip(at + 1)) {
    depth += *at == '{' ? 1 : *at == '}' ? -1 : 0;
    count += *at == ',';
  }
  *from = at;
  return count;
}

/* From behind ".global" to its semicolon: qualifiers, a type, a name, dimensions, an initial value; several
 * names by commas. A dimension that is left empty follows from the initial value. */
static uint64_t declared(const char **from) {
  uint64_t element = 4, vector = 1, count = 1, sum = 0;
  const char *at = skip(*from);
  for (; *at && *at != ';'; at = skip(at)) {
    char c = *at++;
    if (c == '[') {
      uint64_t n = expression(&at, 1, 16);
      count = times(count, n ? n : 1);
    } else if (c == '=') {
      uint64_t n = values(&at);
      if (n > count) count = n;
    } else if (c == ',') {
      sum = add(sum, times(times(element, vector), count));
      count = 1;
    } else if (c == '.' && !strncmp(at, "align", 5)) {
      at = skip(at + 5);
      number(&at);
    } else if (c == '.' && at[0] == 'v' && at[1] >= '2' && at[1] <= '8' && !wordy(at[2])) {
      vector = (uint64_t)(at[1] - '0');
      at += 2;
    } else if (c == '.') {
      element = bytes_of_type(at);
      while (wordy(*at)) at++;
    }
  }
  *from = at;
  return add(sum, times(times(element, vector), count));
}

/* ".global" begins a declaration, unless it is a part of an instruction or says where a parameter points. */
static bool declares(const char *at, char before, bool pointer) {
  return !pointer && before != '.' && !wordy(before) && !strncmp(at, ".global", 7) && !wordy(at[7]) && at[7] != '.';
}

static uint64_t in_text(const char *text) {
  uint64_t sum = 0;
  char before = ' ';
  bool pointer = false;
  for (const char *at = skip(text); *at;) {
    if (declares(at, before, pointer)) {
      at += strlen(".global");
      sum = add(sum, declared(&at));
    }
    if (!*at) break;
    if (*at == '.') pointer = !strncmp(at, ".ptr", 4) && !wordy(at[4]);
    before = *at;
    const char *next = skip(++at);
    if (next != at) before = ' ';
    at = next;
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
