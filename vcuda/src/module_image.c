/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory the global variables of a module take. An image comes without its length: PTX
 * ends with a zero, a cubin (an ELF file) says where its sections are, a fat binary how long it is,
 * and the driver reads them the same way. What is compressed in a fat binary is not looked into.
 */
#include "module_image.h"
#include "bytes.h"

#include <elf.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FATBIN_WRAPPER 0x466243b1u
#define FATBIN 0xba55ed50u
#define ALIGNED 512u

static uint64_t add(uint64_t sum, uint64_t bytes, uint64_t align) {
  if (align < ALIGNED) align = ALIGNED;
  return vc_plus(sum, vc_whole(bytes, align));
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

/* As in C: decimal, octal, hexadecimal or binary; unsigned if it says so or is too large for a sign. */
struct value {
  uint64_t n;
  bool u;
};

static struct value literal(const char **at) {
  struct value v = {0, false};
  unsigned base = 10;
  if (**at == '0') {
    char kind = (char)((*at)[1] | 32);
    base = kind == 'x' ? 16 : kind == 'b' ? 2 : 8;
    *at += base == 8 ? 1 : 2;
  }
  for (; digit(**at) < (int)base; ++*at) v.n = vc_plus(vc_times(v.n, base), (uint64_t)digit(**at));
  v.u = **at == 'U' || v.n > INT64_MAX;
  if (**at == 'U') ++*at;
  return v;
}

static uint64_t number(const char **at) {
  return literal(at).n;
}

/* Binary operators, those of two characters before those that they begin with. */
static const struct {
  char sign[3];
  int rank;
} operators[] = {{"||", 1}, {"&&", 2}, {"<<", 8}, {">>", 8}, {"<=", 7}, {">=", 7}, {"==", 6}, {"!=", 6},
                 {"|", 3},  {"^", 4},  {"&", 5},  {"<", 7},  {">", 7},  {"+", 9},  {"-", 9},  {"*", 10},
                 {"/", 10}, {"%", 10}};

static int operator_at(const char *at) {
  for (int i = 0; i < (int)(sizeof operators / sizeof *operators); i++)
    if (!strncmp(at, operators[i].sign, strlen(operators[i].sign))) return i;
  return -1;
}

static uint64_t divided(struct value a, struct value b, bool rest) {
  int64_t x = (int64_t)a.n, y = (int64_t)b.n;
  if (!b.n) return a.n;
  if (a.u || b.u) return rest ? a.n % b.n : a.n / b.n;
  if (y == -1) return rest ? 0 : 0 - a.n;
  return (uint64_t)(rest ? x % y : x / y);
}

static bool is_less(struct value a, struct value b) {
  return a.u || b.u ? a.n < b.n : (int64_t)a.n < (int64_t)b.n;
}

/* In 64 bits, as the driver's assembler reckons. */
static struct value apply(const char *sign, struct value a, struct value b) {
  struct value v = {0, (a.u || b.u) && sign[0] != '<' && sign[0] != '>' && sign[1] != '='};
  switch (sign[0] << 8 | sign[1]) {
  case '*' << 8: v.n = a.n * b.n; break;
  case '/' << 8: v.n = divided(a, b, false); break;
  case '%' << 8: v.n = divided(a, b, true); break;
  case '+' << 8: v.n = a.n + b.n; break;
  case '-' << 8: v.n = a.n - b.n; break;
  case '&' << 8: v.n = a.n & b.n; break;
  case '^' << 8: v.n = a.n ^ b.n; break;
  case '|' << 8: v.n = a.n | b.n; break;
  case '<' << 8: v.n = is_less(a, b); break;
  case '>' << 8: v.n = is_less(b, a); break;
  case '<' << 8 | '=': v.n = !is_less(b, a); break;
  case '>' << 8 | '=': v.n = !is_less(a, b); break;
  case '=' << 8 | '=': v.n = a.n == b.n; break;
  case '!' << 8 | '=': v.n = a.n != b.n; break;
  case '&' << 8 | '&': v.n = a.n && b.n; break;
  case '|' << 8 | '|': v.n = a.n || b.n; break;
  case '<' << 8 | '<': v = (struct value){b.n < 64 ? a.n << b.n : 0, a.u}; break;
  default: v = (struct value){b.n >= 64 ? 0 : a.u ? a.n >> b.n : (uint64_t)((int64_t)a.n >> b.n), a.u};
  }
  return v;
}

static struct value expression(const char **at, int depth);

/* What is nested deeper than a program writes it fits nowhere. */
static struct value operand(const char **at, int depth) {
  struct value v = {UINT64_MAX, true};
  *at = skip(*at);
  char c = **at;
  if (!depth) return v;
  if (c == '+' || c == '-' || c == '!' || c == '~') {
    ++*at;
    v = operand(at, depth - 1);
    if (c == '!') return (struct value){!v.n, false};
    v.n = c == '-' ? 0 - v.n : c == '~' ? ~v.n : v.n;
    return v;
  }
  if (c == '(') {
    *at = skip(*at + 1);
    bool cast = **at == '.', u = (*at)[0] && (*at)[1] == 'u';
    if (!cast) v = expression(at, depth - 1);
    while (cast && (**at == '.' || wordy(**at))) ++*at;
    *at = skip(*at);
    if (**at == ')') ++*at;
    if (cast) v = (struct value){operand(at, depth - 1).n, u};
    return v;
  }
  if (!strncmp(*at, "WARP_SZ", 7) && !wordy((*at)[7])) {
    *at += 7;
    return (struct value){32, false};
  }
  return literal(at);
}

static struct value binary(const char **at, int least, int depth) {
  struct value v = operand(at, depth);
  for (;;) {
    *at = skip(*at);
    int op = operator_at(*at);
    if (op < 0 || operators[op].rank < least) return v;
    *at += strlen(operators[op].sign);
    v = apply(operators[op].sign, v, binary(at, operators[op].rank + 1, depth));
  }
}

/* A dimension is a constant expression. */
static struct value expression(const char **at, int depth) {
  struct value v = binary(at, 1, depth), other;
  *at = skip(*at);
  if (**at != '?' || !depth) return v;
  ++*at;
  struct value one = expression(at, depth - 1);
  *at = skip(*at);
  if (**at == ':') ++*at;
  other = expression(at, depth - 1);
  return v.n ? one : other;
}

static uint64_t bytes_of_type(const char *at) {
  while (*at >= 'a' && *at <= 'z') at++;
  uint64_t bits = number(&at);
  return bits > 8 ? bits / 8 : 1;
}

/* How many values an initial value has in all, and on its first level; past it. */
static uint64_t values(const char **from, uint64_t *first) {
  uint64_t count = 1;
  int depth = 0;
  const char *at = skip(*from);
  for (*first = 1; *at && *at != ';' && (depth || *at != ','); at = skip(at + 1)) {
    depth += *at == '{' ? 1 : *at == '}' ? -1 : 0;
    count += *at == ',';
    *first += *at == ',' && depth == 1;
  }
  *from = at;
  return count;
}

/* From behind ".global" to its semicolon: qualifiers, a type, a name, dimensions, an initial value; several
 * names by commas. A dimension that is left empty follows from the initial value. */
static uint64_t declared(const char **from) {
  uint64_t element = 4, vector = 1, count = 1, align = 1, sum = 0;
  bool open = false;
  const char *at = skip(*from);
  for (; *at && *at != ';'; at = skip(at)) {
    char c = *at++;
    if (c == '[') {
      at = skip(at);
      open |= *at == ']';
      uint64_t n = *at == ']' ? 1 : expression(&at, 16).n;
      count = vc_times(count, n ? n : 1);
    } else if (c == '=') {
      uint64_t first, n = values(&at, &first);
      if (open) count = vc_times(count, first);
      if (n > count) count = n;
    } else if (c == ',') {
      sum = add(sum, vc_times(vc_times(element, vector), count), align);
      count = 1;
      open = false;
    } else if (c == '.' && !strncmp(at, "align", 5)) {
      at = skip(at + 5);
      align = number(&at);
    } else if (c == '.' && at[0] == 'v' && at[1] >= '2' && at[1] <= '8' && !wordy(at[2])) {
      vector = (uint64_t)(at[1] - '0');
      at += 2;
    } else if (c == '.') {
      element = bytes_of_type(at);
      while (wordy(*at)) at++;
    }
  }
  *from = at;
  return add(sum, vc_times(vc_times(element, vector), count), align);
}

/* ".global" begins a declaration, unless it is part of an instruction or of a parameter's address space. */
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
      sum = vc_plus(sum, declared(&at));
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
  return offset <= size && vc_times(count, each) <= size - offset;
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
      sum = add(sum, section.sh_size, section.sh_addralign);
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

void *vc_image_read(const char *path, uint64_t *globals) {
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
  /* Zeroes behind it, so that a text has its end. */
  char *at = size > 0 ? malloc((size_t)size + 8) : NULL;
  bool ok = at && pread(fd, at, (size_t)size, 0) == size;
  if (ok) memset(at + size, 0, 8);
  if (fd >= 0) close(fd);
  *globals = ok ? in_image((const unsigned char *)at, (uint64_t)size + 8) : 0;
  if (ok) return at;
  free(at);
  return NULL;
}
