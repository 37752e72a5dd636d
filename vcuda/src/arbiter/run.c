/* SPDX-License-Identifier: Apache-2.0 */
/* `arbiter run`: a seat for one program, on a machine without Kubernetes. */
#define _GNU_SOURCE
#include "cli.h"
#include "json.h"
#include "saved_seats.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_TRIES 500
#define START_PAUSE_US 10000
#define ANSWER_MS 5000
#define IDLE_EXIT "10"

const char *ar_folder_of(const struct ar_options *o) {
  static char users[AR_PATH];
  const char *runtime = getenv("XDG_RUNTIME_DIR"), *home = getenv("HOME");
  const char *leaf = o->fake ? "slicekeeper-fake" : "slicekeeper-arbiter";
  if (o->folder) return o->folder;
  if (runtime)
    snprintf(users, sizeof users, "%s/%s", runtime, leaf);
  else if (geteuid() == 0)
    snprintf(users, sizeof users, "/run/%s", leaf);
  else
    snprintf(users, sizeof users, "%s/.cache/slicekeeper/%s", home ? home : "", leaf);
  return users;
}

bool ar_beside(char out[AR_PATH], const char *name) {
  char self[AR_PATH];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  self[n > 0 ? n : 0] = 0;
  char *slash = strrchr(self, '/');
  if (slash) *slash = 0;
  return snprintf(out, AR_PATH, "%s/%s", self, name) < AR_PATH;
}

static int dial(const char *folder) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  if ((size_t)snprintf(at.sun_path, sizeof at.sun_path, "%s/control.sock", folder) >=
      sizeof at.sun_path)
    return -1;
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at) == 0) return fd;
  close(fd);
  return -1;
}

static char *read_line(int fd) {
  size_t length = 0, room = 0;
  char *line = NULL;
  for (;;) {
    struct pollfd ready = {fd, POLLIN, 0};
    if (length + 4096 > room) {
      char *more = realloc(line, room += 65536);
      if (!more) break;
      line = more;
    }
    ssize_t n = poll(&ready, 1, ANSWER_MS) == 1 ? read(fd, line + length, room - length - 1) : -1;
    if (n <= 0) break;
    length += (size_t)n;
    if (line[length - 1] == '\n') {
      line[length] = 0;
      return line;
    }
  }
  free(line);
  return NULL;
}

char *ar_request(const char *folder, const char *line) {
  int fd = dial(folder);
  if (fd < 0) return NULL;
  size_t n = strlen(line);
  bool ok = send(fd, line, n, MSG_NOSIGNAL) == (ssize_t)n && send(fd, "\n", 1, MSG_NOSIGNAL) == 1;
  char *answer = ok ? read_line(fd) : NULL;
  close(fd);
  return answer;
}

/* Start a daemon detached from our terminal, so that it outlives us; of two at once, a lock decides. */
static void start_arbiter(const char *folder, const struct ar_options *o) {
  char self[AR_PATH], log[AR_PATH + 8];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  const char *arguments[] = {"arbiter",
                             "serve",
                             "--dir",
                             folder,
                             "--idle-exit",
                             IDLE_EXIT,
                             "--rule",
                             o->rule ? o->rule : "slicekeeper",
                             o->fake ? "--fake" : NULL,
                             NULL};
  pid_t child = n > 0 ? fork() : -1;
  if (child > 0) waitpid(child, NULL, 0);
  if (child) return;
  self[n] = 0;
  setsid();
  if (fork() != 0) _exit(0);
  snprintf(log, sizeof log, "%s.log", folder);
  if (!freopen("/dev/null", "r", stdin) || !freopen(log, "a", stdout) || !freopen(log, "a", stderr))
    _exit(1);
  unsetenv("LD_PRELOAD");
  execv(self, (char *const *)arguments);
  _exit(1);
}

static bool reach_arbiter(const char *folder, const struct ar_options *o) {
  for (int i = 0; i < START_TRIES; i++) {
    char *answer = ar_request(folder, "{\"op\":\"read\"}");
    free(answer);
    if (answer) return true;
    if (i == 0 || i == START_TRIES / 2) start_arbiter(folder, o);
    usleep(START_PAUSE_US);
  }
  return false;
}

static void prepend(const char *variable, const char *value) {
  const char *old = getenv(variable);
  char text[8192];
  snprintf(text, sizeof text, "%s%s%s", value, old && *old ? ":" : "", old ? old : "");
  setenv(variable, text, 1);
}

static bool take_seat(const char *folder, const struct ar_options *o, char socket[AR_PATH],
                      char uuid[64]) {
  struct ar_text line = {0};
  struct ar_object reply = {0};
  const char *why = "the arbiter does not answer";
  char name[AR_NAME];
  snprintf(name, sizeof name, "run-%d", (int)getpid());
  ar_text_add(&line, "{\"op\":\"set\",\"seat\":");
  ar_text_quote(&line, o->seat ? o->seat : name);
  ar_text_add(&line,
              ",\"gpu\":%d,\"core\":%d,\"limit\":%d,\"memory\":%llu,\"class\":\"%s\",\"pid\":%d}",
              o->gpu, o->core, o->limit, o->memory, o->vclass, (int)getpid());
  char *answer = line.data ? ar_request(folder, line.data) : NULL;
  bool ok = answer && ar_json_parse(answer, strlen(answer), &reply, &why);
  const struct ar_field *path = ar_json_get(&reply, "socket"), *gpu = ar_json_get(&reply, "gpu");
  const struct ar_field *error = ar_json_get(&reply, "error");
  if (ok && path && gpu) {
    snprintf(socket, AR_PATH, "%s", path->text);
    snprintf(uuid, 64, "%.63s", gpu->text);
  } else {
    fprintf(stderr, "arbiter run: %s\n", error ? error->text : why);
    ok = false;
  }
  free(answer);
  ar_text_free(&line);
  return ok;
}

int ar_run(const struct ar_options *o, char **program) {
  char library[AR_PATH], fake[AR_PATH], world[AR_PATH], socket[AR_PATH], uuid[64];
  const char *folder = ar_folder_of(o);
  if (!ar_beside(library, "libvcuda.so") || !ar_beside(fake, "fake")) {
    fprintf(stderr, "arbiter run: the path of this program is too long for it to find libvcuda.so\n");
    return 1;
  }
  if (!reach_arbiter(folder, o)) {
    fprintf(stderr, "arbiter run: no arbiter could be started; see %s.log\n", folder);
    return 1;
  }
  if (!take_seat(folder, o, socket, uuid)) return 1;
  setenv("SLICEKEEPER_SEAT", socket, 1);
  setenv("CUDA_VISIBLE_DEVICES", uuid, 1);
  prepend("LD_PRELOAD", library);
  if (o->fake) {
    prepend("LD_LIBRARY_PATH", fake);
    snprintf(world, sizeof world, "%s/world", folder);
    setenv("SLICEKEEPER_FAKE_WORLD", world, 0);
  }
  /* The program takes our place: its process ID, its exit status and its signals are its own, and
   * the arbiter drops the seat when it is over. */
  execvp(program[0], program);
  fprintf(stderr, "arbiter run: %s: %s\n", program[0], strerror(errno));
  return 127;
}
