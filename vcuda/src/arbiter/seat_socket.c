/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "seat_socket.h"
#include "event_loop.h"
#include "seat_processes.h"
#include "seats.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define STRANGERS 16 /* a seat's connections that have not yet said who they are */
#define STRANGER_NS (5 * VC_S)

struct stranger {
  struct ar_seat *seat;
  int fd;
  uint64_t since;
  struct stranger *next;
};

static struct stranger *strangers;

/* The caller gets its descriptor. */
static void forget(struct stranger *gone) {
  struct stranger **p = &strangers;
  while (*p != gone) p = &(*p)->next;
  *p = gone->next;
  ar_loop_unwatch(gone->fd);
  free(gone);
}

static void show_out(struct stranger *x) {
  int fd = x->fd;
  forget(x);
  close(fd);
}

static bool send_pages(int fd, const struct ar_seat *s, int slot) {
  struct vc_welcome welcome = {VC_MAGIC, VC_VERSION, slot, 0};
  int pages[3] = {s->policy_fd, s->usage_fd, ar_bell_descriptor(s->bell)};
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

/* A seated process says once that it has mapped its pages; anything later is ignored, except the end. */
static void client_ready(void *client, int fd, bool writable) {
  struct ar_client *c = client;
  char noise[256];
  (void)writable;
  ssize_t n = recv(fd, noise, sizeof noise, MSG_DONTWAIT);
  if (n > 0) c->shown = true;
  if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return;
  ar_process_orphan(c);
}

/* A stranger's first message: seat it, or disconnect it. */
static void stranger_ready(void *stranger, int fd, bool writable) {
  struct stranger *x = stranger;
  struct ar_seat *s = x->seat;
  struct vc_hello hello;
  struct ucred peer;
  socklen_t size = sizeof peer;
  (void)writable;
  ssize_t n = recv(fd, &hello, sizeof hello, MSG_TRUNC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  forget(x);
  bool ok = n == sizeof hello && hello.magic == VC_MAGIC && hello.version == VC_VERSION &&
            getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid > 0;
  struct ar_client *c = ok ? ar_process_sit(s, peer.pid, hello.slot, ar_seat_count()) : NULL;
  bool sent = c && send_pages(fd, s, c->slot);
  if (sent && !hello.acknowledges) c->shown = true;
  if (!sent || !ar_loop_watch(fd, client_ready, c)) {
    close(fd);
    if (c && c->fd < 0) c->orphan_at = vc_machine_now();
    return;
  }
  if (c->fd >= 0) {
    ar_loop_unwatch(c->fd);
    close(c->fd);
  }
  c->fd = fd;
  ar_gpu_ring(s->gpu);
}

static void door_ready(void *seat, int door, bool writable) {
  int waiting = 0;
  (void)writable;
  int fd = ar_loop_accept(door);
  if (fd < 0) return;
  for (struct stranger *x = strangers; x; x = x->next) waiting += x->seat == seat;
  struct stranger *x = waiting < STRANGERS ? malloc(sizeof *x) : NULL;
  if (!x || !ar_loop_watch(fd, stranger_ready, x)) {
    close(fd);
    free(x);
    return;
  }
  *x = (struct stranger){seat, fd, vc_machine_now(), strangers};
  strangers = x;
}

static void close_door(struct ar_seat *s) {
  char path[AR_PATH];
  for (struct stranger *x = strangers, *next; x; x = next) {
    next = x->next;
    if (x->seat == s) show_out(x);
  }
  ar_loop_unwatch(s->door);
  close(s->door);
  if (ar_path(path, "seats/%s/seat.sock", s->config.name)) unlink(path);
  if (ar_path(path, "seats/%s", s->config.name)) rmdir(path);
}

bool ar_seat_socket_open(struct ar_seat *s, const char **why) {
  char path[AR_PATH];
  int before = s->door;
  *why = "the seat's folder cannot be made";
  if (!ar_path(path, "seats/%s", s->config.name)) return false;
  if (mkdir(path, 0755) < 0 && errno != EEXIST) return false;
  if (!ar_path(path, "seats/%s/seat.sock", s->config.name)) return false;
  s->door = ar_loop_listen(path, SOCK_SEQPACKET, 0666, why);
  s->closed = close_door;
  ar_loop_unwatch(before);
  if (before >= 0) close(before);
  return s->door >= 0 && ar_loop_watch(s->door, door_ready, s);
}

void ar_seat_socket_tick(uint64_t now) {
  for (struct stranger *x = strangers, *next; x; x = next) {
    next = x->next;
    if (now - x->since > STRANGER_NS) show_out(x);
  }
}
