/* SPDX-License-Identifier: Apache-2.0 */
/* A fat binary with a cubin and a text, whole, cut off anywhere and with wrong bytes anywhere. */
#include "module_image.h"
#include "unit.h"

#include <elf.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct entry {
  uint16_t kind, version;
  uint32_t header;
  uint64_t size;
  uint32_t compressed, unused[9];
};

static const struct {
  uint32_t magic;
  uint16_t version, header;
  uint64_t size;
  struct entry first;
  struct {
    Elf64_Ehdr head;
    Elf64_Shdr section[4];
    char names[40];
  } cubin;
  struct entry second;
  char text[40];
} fat = {
    0xba55ed50, 1, 16, sizeof fat - 16,
    {2, 1, sizeof fat.first, sizeof fat.cubin, 0, {0}},
    {{.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64}, .e_shoff = sizeof(Elf64_Ehdr), .e_shnum = 4, .e_shstrndx = 3},
     {{0},
      {.sh_name = 1, .sh_size = 5000},
      {.sh_name = 12, .sh_size = 1000},
      {.sh_name = 28, .sh_offset = sizeof(Elf64_Ehdr) + 4 * sizeof(Elf64_Shdr), .sh_size = 40}},
     "\0.nv.global\0.nv.global.init\0.shstrtab"},
    {1, 1, sizeof fat.second, sizeof fat.text, 0, {0}},
    ".global .b8 table[6000];",
};

static uint64_t of_file(const void *bytes, size_t size) {
  char path[] = "/tmp/image-XXXXXX";
  int fd = mkstemp(path);
  CHECK(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
  uint64_t sum;
  void *image = vc_image_read(path, &sum);
  free(image);
  close(fd);
  unlink(path);
  return sum;
}

/* How PTX may be written: on one line, with comments anywhere, dimensions as constant expressions. */
static void texts(void) {
  static const struct {
    const char *text;
    uint64_t bytes;
  } list[] = {
      {".version 8.0 .target sm_90 .address_size 64 .visible .global .align 4 .b8 a[6000];", 6144},
      {".version 8.0\n.visible\n.global\n.align\n4 .b8\na\n[\n6000 ] ;", 6144},
      {".global /* .b8 b[1]; */ .b8 a[6000];", 6144},
      {".global .b8 a // of bytes;\n[6000];", 6144},
      {"/* .global .b8 a[6000]; */ // .global .b8 b[6000];", 0},
      {".file 1 \"/*\" .global .b8 a[6000]; .file 2 \"\\\"*/\"", 6144},
      {".global .b32 a[/* 1 */1500];", 6144},
      {".global .b8 a[4 * 1024 + 3*(1<<9)];", 5632},
      {".global .b8 a[0x1000], b[010], c[0b11U];", 4096 + 512 + 512},
      {".global .b8 a[6000 - 2 - 1000 / 2 % 300];", 6144},
      {".global .b8 a[9 - 10][1 >> 70];", UINT64_MAX},
      {".global .b8 a[WARP_SZ * 64], b[(.u64)4096], c[(.s64)(2 * 2048)];", 2048 + 4096 + 4096},
      {".global .b8 a[1 ? 4096 : 1], b[0 ? 1 : 2 > 1 ? 8192 : 1];", 4096 + 8192},
      {".global .b8 a[0 | 4096], b[-(-4096)], c[~0 & 0xfff], d[!0 * 4096], e[+4096];", 5 * 4096},
      {".global .b8 a[(5 == 5 && 3 != 4 || 0) * 4096], b[(7 <= 6) + 4096 ^ 0], c[8192 >> 1 >= 4096 ? 4096 : 9];", 3 * 4096},
      {".global .b8 a[-4096 / -1], b[0xffffffffffffffff / 0xfffffffffffff], c[-1 >> 63 & 4096];", 3 * 4096},
      {".global .b8 a[][4096] = {{1}, {2}, {3}}, b[2][1024] = {{1, 2}, {3}};", 3 * 4096 + 2048},
      {".global .align 8192 .b8 a, b[8193];", 8192 + 16384},
      {".global .b8 a[1 << 63 << 1]; .global .b8 b[99999999999999999999999];", UINT64_MAX},
      {".global .u64 a[] = {1, 2, {3, 4}, 5}, b[64];", 512 + 512},
      {".global .u64 a[] = {0,1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7,8,9,"
       "0,1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7,8,9,0,1,2,3,4};", 1024},
      {".global .attribute(.managed) .align 16 .v4 .f32 a[1024];", 16384},
      {".entry f(.param .u64 .ptr .global .align 4 p) { ld.global.u32 %r1, [%rd1+4096]; st .global.b8 [9], 1; }", 0},
      {".visible .entry f(.param .u64 p[8192]) { cvta.to.global.u64 %rd1, %rd2; }.global .b8 a[6000];", 6144},
      {".global .b8 a[((((((((((((((((((((((((((((((6000))))))))))))))))))))))))))))))];", UINT64_MAX},
      {".global .b8 a[", 512},
      {".global", 512},
      {"/* .global .b8 a[6000];", 0},
  };
  for (unsigned i = 0; i < sizeof list / sizeof *list; i++) {
    uint64_t bytes = vc_image_globals(list[i].text);
    if (bytes != list[i].bytes) printf("%llu: %s\n", (unsigned long long)bytes, list[i].text);
    CHECK(bytes == list[i].bytes);
  }
}

int main(void) {
  unsigned state = 1;
  texts();
  const uint64_t cubin = 5120 + 1024, text = 6144;
  CHECK(vc_image_globals(&fat.cubin) == cubin && vc_image_globals(fat.text) == text);
  CHECK(vc_image_globals(&fat) == cubin && of_file(&fat, sizeof fat) == cubin);
  CHECK(of_file(&fat.cubin, sizeof fat.cubin) == cubin && of_file(fat.text, sizeof fat.text) == text);
  /* A fat binary in a fat binary, very deep, is none. */
  static struct {
    uint32_t magic;
    uint16_t version, header;
    uint64_t size;
    struct entry entry;
  } deep[100000];
  for (size_t i = 0; i < 100000; i++) {
    uint64_t rest = sizeof deep - i * sizeof *deep;
    deep[i].magic = fat.magic;
    deep[i].version = 1;
    deep[i].header = 16;
    deep[i].size = rest - 16;
    deep[i].entry = (struct entry){2, 1, sizeof fat.first, rest - sizeof *deep, 0, {0}};
  }
  CHECK(vc_image_globals(deep) == 0);
  for (size_t size = 0; size < sizeof fat; size += 3) CHECK(of_file(&fat, size) <= cubin);
  for (int i = 0; i < 3000; i++) {
    unsigned char wrong[sizeof fat];
    memcpy(wrong, &fat, sizeof fat);
    for (int j = i % 7; j >= 0; j--)
      wrong[4 + unit_random(&state) % (sizeof fat - 4)] = (unsigned char)unit_random(&state);
    of_file(wrong, sizeof fat);
  }
  return 0;
}
