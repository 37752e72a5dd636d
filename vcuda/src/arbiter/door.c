/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "door.h"
#include "audit.h"
#include "control.h"
#include "gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 128
#define TICK_MS 50
#define ORPHAN_NS (250 * VC_MS)
#define STRANGERS 16 /* a seat's connections that have not yet said who they are */
#define STRANGER_NS (5 * VC_S)

/* What an event belongs to: the low bits of a file descriptor's entry. */
enum kind { STOP = 1, CONTROL, CONTROL_PEER, DOOR, STRANGER, CLIENT, DEATH, ROOT };

struct entry {
  enum kind kind;
  int fd;
  void *owner;
  uint64_t since;
  struct entry *next;
};

static int poller = -1, stop_fd = -1;
static struct entry *entries;

static struct entry *watch(enum kind kind, int fd, void *owner) {
  struct entry *e = calloc(1, sizeof *e);
  if (!e || fd < 0) {
    free(e);
    return NULL;
  }
  *e = (struct entry){kind, fd, owner, vc_machine_now(), entries};
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = e};
  if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) < 0) {
    free(e);
    return NULL;
  }
  entries = e;
  return e;
}

/* Entries are only marked while events are worked on; sweep() frees them. */
static void unwatch(struct entry *e) {
  epoll_ctl(poller, EPOLL_CTL_DEL, e->fd, NULL);
  e->fd = -1;
}

static void unwatch_owner(enum kind kind, const void *owner) {
  for (struct entry *e = entries; e; e = e->next)
    if (e->fd >= 0 && e->kind == kind && e->owner == owner) unwatch(e);
}

static void sweep(void) {
  for (struct entry **p = &entries; *p;) {
    struct entry *e = *p;
    if (e->fd >= 0) {
      p = &e->next;
      continue;
    }
    *p = e->next;
    free(e);
  }
}

int ar_listen(const char *path, int type, mode_t mode, const char **why) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  char part[AR_PATH];
  snprintf(part, sizeof part, "%s.new", path);
  *why = "a socket's path is longer than the system allows: choose a shorter folder";
  if (strlen(part) >= sizeof at.sun_path) return -1;
  strcpy(at.sun_path, part);
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

bool ar_door_open(struct ar_seat *s, const char **why) {
  char path[AR_PATH];
  *why = "the seat's folder cannot be made";
  if (!ar_path(path, "seats/%s", s->config.name)) return false;
  if (mkdir(path, 0755) < 0 && errno != EEXIST) return false;
  if (!ar_path(path, "seats/%s/seat.sock", s->config.name)) return false;
  s->door = ar_listen(path, SOCK_SEQPACKET, 0666, why);
  return s->door >= 0 && watch(DOOR, s->door, s);
}

void ar_door_close(struct ar_seat *s) {
  char path[AR_PATH];
  unwatch_owner(DOOR, s);
  unwatch_owner(ROOT, s);
  for (struct entry *e = entries; e; e = e->next)
    if (e->fd >= 0 && e->kind == STRANGER && e->owner == s) {
      int fd = e->fd;
      unwatch(e);
      close(fd);
    }
  close(s->door);
  if (ar_path(path, "seats/%s/seat.sock", s->config.name)) unlink(path);
  if (ar_path(path, "seats/%s", s->config.name)) rmdir(path);
}

void ar_door_watch_root(struct ar_seat *s) {
  if (s->root_pidfd >= 0) watch(ROOT, s->root_pidfd, s);
}

void ar_door_watch_client(struct ar_client *c) {
  if (c->pidfd >= 0) watch(DEATH, c->pidfd, c);
}

void ar_door_forget_client(struct ar_client *c) {
  unwatch_owner(CLIENT, c);
  unwatch_owner(DEATH, c);
}

static int strangers_of(const struct ar_seat *s) {
  int count = 0;
  for (struct entry *e = entries; e; e = e->next)
    count += e->fd >= 0 && e->kind == STRANGER && e->owner == s;
  return count;
}

static void welcome_stranger(struct ar_seat *s) {
  int fd = accept4(s->door, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return;
  if (strangers_of(s) >= STRANGERS || !watch(STRANGER, fd, s)) close(fd);
}

static bool send_pages(int fd, const struct ar_seat *s, int slot) {
  struct vc_welcome welcome = {VC_MAGIC, VC_VERSION, slot, 0};
  int pages[3] = {s->policy_fd, s->usage_fd, s->gpu->bell_fd};
  union {
    char room[CMSG_SPACE(sizeof pages)];
    struct cmsghdr align;
  } control = {0};
  struct iovec part = {&welcome, sizeof welcome};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof pages);
  memcpy(CMSG_DATA(c), pages, sizeof pages);
  return sendmsg(fd, &message, MSG_NOSIGNAL) == sizeof welcome;
}

/* A stranger's first message: seat it, or show it the door. */
static void seat_stranger(struct entry *e) {
  struct ar_seat *s = e->owner;
  struct vc_hello hello;
  struct ucred peer;
  socklen_t size = sizeof peer;
  int fd = e->fd;
  ssize_t n = recv(fd, &hello, sizeof hello, MSG_TRUNC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  unwatch(e);
  bool ok = n == sizeof hello && hello.magic == VC_MAGIC && hello.version == VC_VERSION &&
            getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid > 0;
  struct ar_client *c = ok ? ar_seat_sit(s, peer.pid, hello.slot) : NULL;
  if (!c || !send_pages(fd, s, c->slot)) {
    close(fd);
    return;
  }
  unwatch_owner(CLIENT, c);
  if (c->fd >= 0) close(c->fd);
  c->fd = fd;
  watch(CLIENT, fd, c);
  ar_gpu_ring(s->gpu);
}

/* A seated process says nothing more: what comes is its end, or noise that is thrown away. */
static void client_event(struct entry *e) {
  struct ar_client *c = e->owner;
  char noise[256];
  ssize_t n = recv(e->fd, noise, sizeof noise, MSG_DONTWAIT);
  if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return;
  int fd = e->fd;
  unwatch(e);
  close(fd);
  c->fd = -1;
  /* Dead, exec'ed, or its descriptors closed: only time tells. A death is told by the pidfd. */
  c->orphan_at = vc_machine_now() + ORPHAN_NS;
  if (c->pidfd < 0) ar_seat_leave(c);
}

static void drop_if_over(struct ar_seat *s) {
  if (s->config.root && s->root_pidfd < 0 && ar_seat_empty(s)) ar_seat_drop(s);
}

static void root_died(struct ar_seat *s) {
  unwatch_owner(ROOT, s);
  close(s->root_pidfd);
  s->root_pidfd = -1;
}

static void work(struct entry *e) {
  if (e->fd < 0) return;
  switch (e->kind) {
  case STOP:
    break;
  case CONTROL: {
    int fd = accept4(e->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    void *peer = fd >= 0 ? ar_control_open(fd) : NULL;
    if (peer && !watch(CONTROL_PEER, fd, peer)) ar_control_close(peer);
    break;
  }
  case CONTROL_PEER:
    if (!ar_control_read(e->owner)) {
      unwatch(e);
      ar_control_close(e->owner);
    }
    break;
  case DOOR:
    welcome_stranger(e->owner);
    break;
  case STRANGER:
    seat_stranger(e);
    break;
  case CLIENT:
    client_event(e);
    break;
  case DEATH:
    ar_seat_leave(e->owner);
    break;
  case ROOT:
    root_died(e->owner);
    break;
  }
}

/* What is due by time: orphans, silent strangers, seats of programs that are over. */
static void tick(void) {
  uint64_t now = vc_machine_now();
  for (struct entry *e = entries; e; e = e->next)
    if (e->fd >= 0 && e->kind == STRANGER && now - e->since > STRANGER_NS) {
      int fd = e->fd;
      unwatch(e);
      close(fd);
    }
  for (struct ar_seat *s = ar_seat_first(), *next; s; s = next) {
    next = s->next;
    for (unsigned i = 0; i < VC_SLOTS; i++)
      if (s->client[i] && s->client[i]->orphan_at && s->client[i]->fd < 0 &&
          now > s->client[i]->orphan_at)
        ar_seat_leave(s->client[i]);
    drop_if_over(s);
  }
}

bool ar_loop_start(const char **why) {
  char path[AR_PATH];
  poller = epoll_create1(EPOLL_CLOEXEC);
  stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  *why = "the event loop cannot be made";
  if (poller < 0 || !watch(STOP, stop_fd, NULL) || !ar_path(path, "control.sock")) return false;
  ar_seat_restore();
  int fd = ar_listen(path, SOCK_STREAM, 0600, why);
  return fd >= 0 && watch(CONTROL, fd, NULL);
}

void ar_loop_stop(void) {
  uint64_t one = 1;
  if (write(stop_fd, &one, sizeof one) < 0) return;
}

void ar_loop_run(int idle_exit) {
  struct epoll_event events[64];
  uint64_t busy_at = vc_machine_now(), ticked = 0;
  for (;;) {
    int n = epoll_wait(poller, events, 64, TICK_MS);
    for (int i = 0; i < n; i++) {
      struct entry *e = events[i].data.ptr;
      if (e->kind == STOP) return;
      work(e);
    }
    uint64_t now = vc_machine_now();
    if (now - ticked > TICK_MS * VC_MS / 2) {
      tick();
      ar_audit_tick();
      ticked = now;
    }
    sweep();
    if (ar_seat_first()) busy_at = now;
    if (idle_exit && now - busy_at > (uint64_t)idle_exit * VC_S) return;
  }
}
