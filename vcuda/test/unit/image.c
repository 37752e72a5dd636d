/* SPDX-License-Identifier: Apache-2.0 */
/* A fat binary with a cubin and a text, whole, cut off anywhere and with wrong bytes anywhere. */
#include "image.h"
#include "unit.h"

#include <elf.h>
#include <stdint.h>
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
  uint64_t sum = vc_image_file(path);
  close(fd);
  unlink(path);
  return sum;
}

int main(void) {
  unsigned state = 1;
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
