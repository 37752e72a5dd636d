/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include "clock_and_lock.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "arbiter serve [--dir DIR] [--fake] [--rule slicekeeper|kubegpu|gemini] [--idle-exit SECONDS]\n"
    "arbiter run [--dir DIR] [--fake] [--gpu N] --core PERCENT [--limit PERCENT] --memory SIZE\n"
    "            [--class in-budget|background] [--seat NAME] [--] PROGRAM ...\n"
    "arbiter top [--dir DIR] [--fake] [--once]\n"
    "arbiter ask [--dir DIR] [--fake] JSON\n"
    "SIZE is in bytes, or with KiB, MiB, GiB, TiB. run finds this user's arbiter or starts one.\n";

static int complain(const char *what) {
  fprintf(stderr, "arbiter: %s\n%s", what, usage);
  return 2;
}

/* Whole numbers only: what cannot be read must never mean "unlimited". */
static bool number(const char *text, long low, long high, int *out) {
  char *end;
  long value = strtol(text, &end, 10);
  *out = (int)value;
  return end != text && !*end && value >= low && value <= high;
}

static bool size(const char *text, unsigned long long *out) {
  static const struct {
    const char *unit;
    int shift;
  } units[] = {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
  char *end;
  unsigned long long value = strtoull(text, &end, 10);
  if (end == text || *text == '-') return false;
  for (unsigned i = 0; i < sizeof units / sizeof *units; i++) {
    if (strcmp(end, units[i].unit)) continue;
    *out = value << units[i].shift;
    return value && *out >> units[i].shift == value;
  }
  return false;
}

enum { DIR = 1, FAKE, RULE, IDLE, GPU, CORE, LIMIT, MEMORY, CLASS, SEAT, ONCE };

static const struct option options[] = {
    {"dir", 1, NULL, DIR},        {"fake", 0, NULL, FAKE},     {"rule", 1, NULL, RULE},
    {"idle-exit", 1, NULL, IDLE}, {"gpu", 1, NULL, GPU},       {"core", 1, NULL, CORE},
    {"limit", 1, NULL, LIMIT},    {"memory", 1, NULL, MEMORY}, {"class", 1, NULL, CLASS},
    {"seat", 1, NULL, SEAT},      {"once", 0, NULL, ONCE},     {NULL, 0, NULL, 0},
};

static const char *parse(int argc, char **argv, struct ar_options *o) {
  int c;
  while ((c = getopt_long(argc, argv, "+", options, NULL)) != -1) {
    switch (c) {
    case DIR:
      o->folder = optarg;
      break;
    case FAKE:
      o->fake = true;
      break;
    case ONCE:
      o->once = true;
      break;
    case RULE:
      o->rule = optarg;
      break;
    case SEAT:
      o->seat = optarg;
      break;
    case IDLE:
      if (!number(optarg, 0, 1000000, &o->idle_exit)) return "--idle-exit takes seconds";
      break;
    case GPU:
      if (!number(optarg, 0, 1023, &o->gpu)) return "--gpu takes an index";
      break;
    case CORE:
      if (!number(optarg, 1, 100, &o->core)) return "--core takes 1 to 100";
      break;
    case LIMIT:
      if (!number(optarg, 1, 100, &o->limit)) return "--limit takes 1 to 100";
      break;
    case MEMORY:
      if (!size(optarg, &o->memory)) return "--memory takes a size such as 4GiB";
      break;
    case CLASS:
      if (strcmp(optarg, "in-budget") && strcmp(optarg, "background"))
        return "--class takes in-budget or background";
      o->vclass = optarg;
      break;
    default:
      return "an option is not understood";
    }
  }
  return NULL;
}

int main(int argc, char **argv) {
  struct ar_options o = {.limit = 100, .vclass = "in-budget"};
  if (argc < 2) return complain("a command is missing");
  vc_machine_clock_find();
  const char *command = argv[1];
  if (!strcmp(command, "--help") || !strcmp(command, "help")) return fputs(usage, stdout) < 0;
  const char *wrong = parse(argc - 1, argv + 1, &o);
  char **rest = argv + 1 + optind;
  if (wrong) return complain(wrong);
  if (!strcmp(command, "serve")) return *rest ? complain("serve takes no more") : ar_serve(&o);
  if (!strcmp(command, "top")) return ar_top(&o);
  if (!strcmp(command, "ask")) return *rest ? ar_ask(&o, *rest) : complain("a line is missing");
  if (strcmp(command, "run")) return complain("no such command");
  if (!*rest) return complain("a program is missing");
  if (!o.core) return complain("--core is missing");
  if (!o.memory) return complain("--memory is missing");
  if (o.limit < o.core) return complain("--limit is below --core");
  return ar_run(&o, rest);
}
