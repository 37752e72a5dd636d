/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "event_loop.h"
#include "clock_and_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 128
#define TICK_MS 50

/* By descriptor. The serial tells an event of a watch that is gone from one of its successor. */
struct watch {
  ar_ready *ready;
  void *owner;
  uint32_t serial;
};

static int poller = -1, stop_fd = -1, spare_fd = -1;
static struct watch *watches;
static unsigned room;
static uint32_t serial;

static bool make_room(int fd) {
  unsigned want = room ? room : 256;
  while (want <= (unsigned)fd) want *= 2;
  if (want == room) return true;
  struct watch *grown = realloc(watches, want * sizeof *grown);
  if (!grown) return false;
  memset(grown + room, 0, (want - room) * sizeof *grown);
  watches = grown;
  room = want;
  return true;
}

static bool control(int operation, int fd, uint32_t events) {
  struct epoll_event event = {.events = events};
  event.data.u64 = (uint64_t)watches[fd].serial << 32 | (uint32_t)fd;
  return epoll_ctl(poller, operation, fd, &event) == 0;
}

bool ar_loop_watch(int fd, ar_ready *ready, void *owner) {
  if (fd < 0 || !make_room(fd)) return false;
  watches[fd] = (struct watch){ready, owner, ++serial};
  if (control(EPOLL_CTL_ADD, fd, EPOLLIN)) return true;
  watches[fd] = (struct watch){0};
  return false;
}

void ar_loop_want(int fd, bool writable) {
  control(EPOLL_CTL_MOD, fd, writable ? EPOLLOUT : EPOLLIN);
}

void ar_loop_unwatch(int fd) {
  if (fd < 0 || (unsigned)fd >= room || !watches[fd].ready) return;
  epoll_ctl(poller, EPOLL_CTL_DEL, fd, NULL);
  watches[fd] = (struct watch){0};
}

/* A spare descriptor is released for the moment that it takes to turn a client away: a listening
 * socket whose connections cannot be accepted stays ready, and the loop would spin. */
int ar_loop_accept(int listener) {
  int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0 || (errno != EMFILE && errno != ENFILE)) return fd;
  close(spare_fd);
  fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) close(fd);
  spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  return -1;
}

int ar_loop_listen(const char *path, int type, mode_t mode, const char **why) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  char part[sizeof at.sun_path];
  *why = "a socket's path is longer than the system allows: choose a shorter folder";
  if ((size_t)snprintf(part, sizeof part, "%s.new", path) >= sizeof part) return -1;
  memcpy(at.sun_path, part, sizeof part);
  *why = "a socket could not be made";
  int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  unlink(part);
  /* Made aside and renamed: there is no moment without a socket, nor one with the wrong mode. */
  if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || chmod(part, mode) < 0 ||
      listen(fd, BACKLOG) < 0 || rename(part, path) < 0) {
    close(fd);
    return -1;
  }
  return fd;
}

unsigned ar_loop_descriptors(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) < 0) return 256;
  return limit.rlim_cur > 1u << 20 ? 1u << 20 : (unsigned)limit.rlim_cur;
}

bool ar_loop_start(const char **why) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  poller = epoll_create1(EPOLL_CLOEXEC);
  stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = UINT64_MAX};
  *why = "the event loop cannot be made";
  return poller >= 0 && stop_fd >= 0 && spare_fd >= 0 &&
         epoll_ctl(poller, EPOLL_CTL_ADD, stop_fd, &event) == 0;
}

void ar_loop_stop(void) {
  uint64_t one = 1;
  if (write(stop_fd, &one, sizeof one) < 0) return;
}

static void work(const struct epoll_event *event) {
  uint32_t fd = (uint32_t)event->data.u64;
  if (fd >= room || watches[fd].serial != event->data.u64 >> 32) return;
  /* A copy: what is called may make the table grow. */
  struct watch w = watches[fd];
  if (w.ready) w.ready(w.owner, (int)fd, event->events & EPOLLOUT);
}

void ar_loop_run(void (*tick)(uint64_t now), bool (*busy)(void), int idle_exit) {
  struct epoll_event events[64];
  uint64_t busy_at = vc_machine_now(), ticked = 0;
  for (;;) {
    int n = epoll_wait(poller, events, 64, TICK_MS);
    for (int i = 0; i < n; i++) {
      if (events[i].data.u64 == UINT64_MAX) return;
      work(&events[i]);
    }
    uint64_t now = vc_machine_now();
    if (now - ticked > TICK_MS * VC_MS / 2) {
      tick(now);
      ticked = now;
    }
    if (busy()) busy_at = now;
    if (idle_exit && now - busy_at > (uint64_t)idle_exit * VC_S) return;
  }
}
