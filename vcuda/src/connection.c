/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which seat a process belongs to is decided by the socket that it reaches. In a container the seat's folder is mounted
 * at a fixed place and nothing else counts; elsewhere `arbiter run` names the socket in the environment, which is
 * read once, before the program's own code can change it, and never in a setuid program.
 */
#define _GNU_SOURCE
#include "connection.h"
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define MOUNTED "/run/slicekeeper/seat.sock"
#define FIRST_WAIT_NS (2 * VC_S)
#define FIRST_PAUSE_NS (2 * VC_MS)
#define ANSWER_MS 1000
#define TEND_NS (50 * VC_MS)
#define BACKOFF_MAX_NS (1 * VC_S)

struct vc_seat vc_seat;
static _Atomic uint32_t closed_gate;
_Atomic uint32_t vc_own_gate;
_Atomic uint32_t *_Atomic vc_gate = &closed_gate;

static struct vc_lock guard;
static _Atomic int owner; /* the process that is connected; a forked child is not */
static _Atomic int last_seen; /* the process that asked last: another one is a child, if no handler says so */
static int socket_fd = -1;
static ino_t socket_inode;
static int slot_index = -1;
static bool waited;
static uint64_t next_try, pause_ns, next_look;
static uint64_t beat, beat_at; /* the arbiter's last heartbeat, and when the keeper first saw it */
static char from_environment[sizeof(((struct sockaddr_un *)0)->sun_path)];

__attribute__((constructor)) static void read_environment(void) {
  const char *path = secure_getenv("SLICEKEEPER_SEAT");
  if (path && strlen(path) < sizeof from_environment) strcpy(from_environment, path);
}

/* False if this process belongs to no seat. */
static bool find_socket(char *path, size_t size) {
  const char *chosen = access(MOUNTED, F_OK) == 0 ? MOUNTED : from_environment;
  if (!*chosen || strlen(chosen) >= size) return false;
  strcpy(path, chosen);
  return true;
}

/* If the path came from the environment, trust only root's or our own arbiter. */
static bool trusted(int fd, const char *path) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  if (!strcmp(path, MOUNTED)) return true;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0) return false;
  return peer.uid == 0 || peer.uid == geteuid();
}

static int dial(void) {
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  if (!find_socket(to.sun_path, sizeof to.sun_path)) return -1;
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0 && trusted(fd, to.sun_path)) return fd;
  close(fd);
  return -1;
}

static bool receive(int fd, struct vc_welcome *welcome, int pages[3]) {
  union {
    char room[CMSG_SPACE(3 * sizeof(int))];
    struct cmsghdr align;
  } control;
  struct iovec part = {welcome, sizeof *welcome};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  struct pollfd ready = {fd, POLLIN, 0};
  if (poll(&ready, 1, ANSWER_MS) != 1) return false;
  ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  struct cmsghdr *c = got >= 0 ? CMSG_FIRSTHDR(&message) : NULL;
  if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(3 * sizeof(int))) return false;
  memcpy(pages, CMSG_DATA(c), 3 * sizeof(int));
  return got == sizeof *welcome && welcome->magic == VC_MAGIC && welcome->version == VC_VERSION &&
         welcome->slot >= 0 && welcome->slot < (int)VC_SLOTS;
}

/* fstat is newer than glibc 2.17 under its own name. */
static int stat_of(int fd, struct stat *file) {
  return (int)syscall(SYS_fstat, fd, file);
}

static void *map_over(void *old, int fd, size_t size, int access) {
  struct stat file;
  if (stat_of(fd, &file) < 0 || (size_t)file.st_size < size) return NULL;
  void *p = mmap(old, size, access, MAP_SHARED | (old ? MAP_FIXED : 0), fd, 0);
  return p == MAP_FAILED ? NULL : p;
}

static bool map_pages(const int pages[3]) {
  struct vc_policy *policy =
      map_over(atomic_load(&vc_seat.policy), pages[0], sizeof(struct vc_policy), PROT_READ);
  if (policy) atomic_store(&vc_seat.policy, policy);
  int both = PROT_READ | PROT_WRITE;
  struct vc_usage *usage = map_over(vc_seat.usage, pages[1], sizeof(struct vc_usage), both);
  if (usage) vc_seat.usage = usage;
  struct vc_bell *bell = map_over(vc_seat.bell, pages[2], sizeof(struct vc_bell), both);
  if (bell) vc_seat.bell = bell;
  return policy && usage && bell && policy->magic == VC_MAGIC && policy->version == VC_VERSION;
}

/* A fake GPU in virtual time lends us its clock; the arbiter says so, not the tenant. */
static void adopt_clock(const struct vc_policy *policy) {
  if (!policy->virtual_time || vc_clock) return;
  const struct vc_clock *(*get)(void) =
      (const struct vc_clock *(*)(void))vc_resolve_symbol("libcuda.so.1", "skfClock");
  if (get) vc_clock = get();
}

static bool shake_hands(int fd, int previous) {
  struct vc_hello hello = {VC_MAGIC, VC_VERSION, previous, 1};
  struct vc_welcome welcome;
  int pages[3] = {-1, -1, -1};
  bool ok =
      send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello && receive(fd, &welcome, pages);
  if (ok) vc_life.moves();
  ok = ok && map_pages(pages) && send(fd, "", 1, MSG_NOSIGNAL) == 1;
  for (int i = 0; i < 3; i++)
    if (pages[i] >= 0) close(pages[i]);
  if (!ok) return false;
  slot_index = welcome.slot;
  vc_life.seated(&vc_seat.usage->slot[slot_index]);
  adopt_clock(vc_seat.policy);
  return true;
}

/* With the guard held. */
static bool connect_now(void) {
  struct stat file;
  int fd = dial();
  if (fd < 0) return false;
  if (!shake_hands(fd, slot_index) || stat_of(fd, &file) < 0) {
    close(fd);
    return false;
  }
  socket_fd = fd;
  socket_inode = file.st_ino;
  pause_ns = 0;
  atomic_store(&vc_gate, &vc_seat.policy->gate);
  return true;
}

/* The program may have closed our descriptor and opened another file under its number. */
static bool still_ours(void) {
  struct stat file;
  return socket_fd >= 0 && stat_of(socket_fd, &file) == 0 && S_ISSOCK(file.st_mode) &&
         file.st_ino == socket_inode;
}

/* A parent without a seat, or one that was just taking its seat, may have held any of the locks as well. */
void vc_seat_forked(void) {
  atomic_store(&guard.word, 0);
  if (atomic_exchange(&owner, 0)) waited = false;
  atomic_store(&last_seen, 0);
  if (still_ours()) close(socket_fd);
  socket_fd = -1;
  slot_index = -1;
  next_try = pause_ns = beat = 0;
  atomic_store(&vc_gate, &closed_gate);
  vc_life.forget();
}

static bool lost(void) {
  char byte;
  if (!still_ours()) {
    socket_fd = -1;
    return true;
  }
  ssize_t got = recv(socket_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) return false;
  close(socket_fd);
  socket_fd = -1;
  return true;
}

/* With the guard held: connect, the first time patiently, because a container's first process can be faster than the
 * agent that sets the policy. The pauses grow, because a thousand processes that find their seat full would otherwise
 * keep the arbiter busy with refusing them. */
static bool first_connect(void) {
  uint64_t now = vc_machine_now(), pause = FIRST_PAUSE_NS;
  char path[sizeof from_environment];
  if ((now < next_try && next_try - now <= TEND_NS) || !find_socket(path, sizeof path)) return false;
  vc_machine_clock_find(); /* a process of one thread may change its time namespace */
  uint64_t until = vc_machine_now() + (waited ? 0 : FIRST_WAIT_NS);
  while (!connect_now()) {
    now = vc_machine_now();
    next_try = now + TEND_NS;
    if (now >= until) {
      waited = true;
      return false;
    }
    vc_machine_sleep(pause);
    if (pause < TEND_NS) pause *= 2;
  }
  return true;
}

bool vc_seat_ready(void) {
  int me = (int)syscall(SYS_getpid);
  if (VC_LIKELY(atomic_load_explicit(&owner, memory_order_acquire) == me)) return true;
  int before = atomic_exchange(&last_seen, me);
  if (before && before != me) {
    vc_seat_forked();
    atomic_store(&last_seen, me);
  }
  vc_lock(&guard);
  bool ready = atomic_load(&owner) == me;
  if (!ready) {
    ready = (!lost() || first_connect()) && vc_life.start(); /* connected before, but the keeper did not start */
    if (ready) atomic_store_explicit(&owner, me, memory_order_release);
  }
  vc_unlock(&guard);
  return ready;
}

/* By how long the heart has not beaten, and not by when it did, which is a time on another process's clock. */
bool vc_seat_stale(uint64_t now) {
  uint64_t last = atomic_load_explicit(&vc_seat.policy->heartbeat, memory_order_relaxed);
  if (last != beat) {
    beat = last;
    beat_at = now;
  }
  return now > beat_at && now - beat_at > VC_STALE_NS;
}

void vc_seat_tend(void) {
  uint64_t now = vc_machine_now();
  if (now < next_look) return;
  next_look = now + TEND_NS;
  vc_lock(&guard);
  if (lost() && now >= next_try && !connect_now()) {
    pause_ns = pause_ns ? 2 * pause_ns : TEND_NS;
    if (pause_ns > BACKOFF_MAX_NS) pause_ns = BACKOFF_MAX_NS;
    next_try = now + pause_ns;
  }
  vc_unlock(&guard);
}

void vc_seat_ring(void) {
  atomic_fetch_add(&vc_seat.bell->word, 1);
  vc_wake(&vc_seat.bell->word, vc_seat.policy->bell_key);
}
