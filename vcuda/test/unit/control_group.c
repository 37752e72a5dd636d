/* SPDX-License-Identifier: Apache-2.0 */
/* Which control groups are a seat's, and which are only named like it. */
#include "arbiter/control_group.h"
#include "unit.h"

#include <stdbool.h>

static const struct {
  const char *line, *name;
  bool is;
} cases[] = {
    {"0::/jobs/one", "one", 1},
    {"0::/jobs/one/inner", "one", 1},
    {"0::/one", "one", 1},
    {"0::/jobs/one", "jobs/one", 1},
    {"0::/jobs/one", "/jobs/one", 1},
    {"0::/jobs/one/inner", "/jobs/one/", 1},
    {"0::/jobs/one2", "one", 0},
    {"0::/jobs/one-more", "one", 0},
    {"0::/jobs/someone", "one", 0},
    {"0::/jobs/some-one", "one", 0},
    {"0::/jobs/one2/one", "one", 1},
    {"0::/jobs/one", "one2", 0},
    {"0::/other/jobs/one", "/jobs/one", 1},
    {"0::/jobs/one.more", "one", 0},
    {"0::/system.slice/one.service", "one", 1},
    {"0::/system.slice/one.service2", "one", 0},
    {"0::/a.slice/a-one.slice", "one", 1},
    {"0::/a.slice/a-one.scope", "one", 0},
    {"0::/a.slice/a-one.slice/b.scope", "one", 1},
    {"5:devices:/kubepods/pod12-34/c", "pod12-34", 1},
    {"0::/kubepods.slice/kubepods-pod12_34.slice/cri-containerd-c.scope", "pod12-34", 1},
    {"0::/kubepods.slice/kubepods-pod12_345.slice/cri-containerd-c.scope", "pod12-34", 0},
    {"0::/kubepods/pod012-34/c", "12-34", 0},
    {"0::/jobs/one", "", 0},
    {"", "one", 0},
};

int main(void) {
  for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
    bool is = ar_control_group_find(cases[i].line, cases[i].name);
    if (is != cases[i].is) fprintf(stderr, "%s in %s\n", cases[i].name, cases[i].line);
    CHECK(is == cases[i].is);
  }
  return 0;
}
