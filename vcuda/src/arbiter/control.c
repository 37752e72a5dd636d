/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "control.h"
#include "event_loop.h"
#include "seat_socket.h"
#include "seats.h"
#include "unlimited_processes.h"
#include "usage_page.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINE 4096
#define PEERS 64
#define SEND_NS (10 * VC_S) /* a peer that does not read its answer for so long is disconnected */

struct peer {
  int fd;
  size_t length, sent;
  struct ar_text out; /* what it has not read yet; no request of it is answered before */
  uint64_t since;
  char line[LINE];
  struct peer *next;
};

static struct peer *peers;

static void hang_up(struct peer *gone) {
  struct peer **p = &peers;
  while (*p != gone) p = &(*p)->next;
  *p = gone->next;
  ar_loop_unwatch(gone->fd);
  close(gone->fd);
  ar_text_free(&gone->out);
  free(gone);
}

static void refuse(struct ar_text *out, const char *why) {
  ar_text_add(out, "{\"ok\":false,\"error\":");
  ar_text_quote(out, why);
  ar_text_add(out, "}\n");
}

static void set(const struct ar_object *request, bool change, struct ar_text *out) {
  const struct ar_field *name = ar_json_get(request, "seat");
  struct ar_seat *known = name && name->kind == AR_STRING ? ar_seat_find(name->text) : NULL;
  struct ar_config config = {.limit = 100};
  const char *why = "no such seat";
  bool made;
  char path[AR_PATH];
  if (change && known) config = known->config;
  if (change && !known) return refuse(out, why);
  if (!ar_state_read(request, &config, &why)) return refuse(out, why);
  struct ar_seat *seat = ar_seat_set(&config, &made, &why);
  if (seat && made && !ar_seat_socket_open(seat, &why)) {
    ar_seat_drop(seat);
    seat = NULL;
  }
  if (!seat || !ar_path(path, "seats/%s/seat.sock", config.name)) return refuse(out, why);
  ar_text_add(out, "{\"ok\":true,\"gpu\":\"%s\",\"socket\":", seat->gpu->uuid_text);
  ar_text_quote(out, path);
  ar_text_add(out, "}\n");
}

static void drop(const struct ar_object *request, struct ar_text *out) {
  const struct ar_field *name = ar_json_get(request, "seat");
  struct ar_seat *seat = name && name->kind == AR_STRING ? ar_seat_find(name->text) : NULL;
  if (!seat) return refuse(out, "no such seat");
  ar_seat_drop(seat);
  ar_text_add(out, "{\"ok\":true}\n");
}

static void follow(const struct ar_object *request, struct ar_text *out) {
  const struct ar_field *name = ar_json_get(request, "rule");
  ar_rule *rule = name && name->kind == AR_STRING ? ar_rule_named(name->text) : NULL;
  if (!rule) return refuse(out, "rule must be slicekeeper, kubegpu or gemini");
  for (int i = 0; i < ar_gpu_count; i++) ar_gpu_follow(&ar_gpus[i], rule);
  ar_text_add(out, "{\"ok\":true}\n");
}

#define U(x) ((unsigned long long)(x))

static void tell_seat(struct ar_seat *s, struct ar_text *out, uint64_t now) {
  const struct ar_config *c = &s->config;
  struct ar_totals t = ar_usage_totals(s);
  const struct ar_member *m = &s->place.member;
  uint64_t granted = m->granted + (m->open && now > m->opened_at ? now - m->opened_at : 0);
  ar_text_add(out, "{\"seat\":");
  ar_text_quote(out, c->name);
  ar_text_add(out,
              ",\"gpu\":%d,\"core\":%u,\"limit\":%u,\"memory_limit\":%llu,\"class\":\"%s\","
              "\"processes\":%d,\"wall_ns\":%llu,\"busy_ns\":%llu,\"charged_ns\":%llu,"
              "\"granted_ns\":%llu,\"grants\":%llu,\"waited_ns\":%llu,\"launches\":%llu,"
              "\"memory\":%llu,\"memory_peak\":%llu,\"memory_overhead\":%llu,\"memory_left\":%llu}",
              c->gpu, c->core, c->limit, U(c->memory),
              c->vclass == VC_IN_BUDGET ? "in-budget" : "background", t.processes,
              U(now - s->since), U(t.busy), U(m->used), U(granted), U(m->grants), U(t.waited),
              U(t.launches), U(t.memory), U(t.peak), U(atomic_load(&s->place.policy->overhead)),
              U(s->left.proven + s->left.claimed));
}

static void telemetry(struct ar_text *out) {
  uint64_t now = vc_now();
  ar_text_add(out, "{\"ok\":true,\"now_ns\":%llu,\"pid\":%d,\"rule\":\"%s\",\"gpus\":[", U(now),
              (int)getpid(), ar_rule_name(ar_gpus[0].sched.rule));
  for (int i = 0; i < ar_gpu_count; i++) {
    ar_text_add(out, "%s{\"gpu\":%d,\"uuid\":\"%s\",\"name\":", i ? "," : "", i,
                ar_gpus[i].uuid_text);
    ar_text_quote(out, ar_gpus[i].name);
    ar_text_add(out, ",\"memory\":%llu}", U(ar_gpus[i].memory));
  }
  ar_text_add(out, "],\"seats\":[");
  for (struct ar_seat *s = ar_seat_first(); s; s = s->next) {
    pthread_mutex_lock(&s->gpu->lock);
    tell_seat(s, out, now);
    pthread_mutex_unlock(&s->gpu->lock);
    if (s->next) ar_text_add(out, ",");
  }
  ar_text_add(out, "],\"audit\":[");
  ar_unlimited_write(out);
  ar_text_add(out, "]}\n");
}

static void answer(const char *line, size_t length, struct ar_text *out) {
  struct ar_object request;
  const char *why;
  if (!ar_json_parse(line, length, &request, &why)) return refuse(out, why);
  const struct ar_field *op = ar_json_get(&request, "op");
  const char *what = op && op->kind == AR_STRING ? op->text : "";
  if (!strcmp(what, "set")) return set(&request, false, out);
  if (!strcmp(what, "change")) return set(&request, true, out);
  if (!strcmp(what, "drop")) return drop(&request, out);
  if (!strcmp(what, "rule")) return follow(&request, out);
  if (!strcmp(what, "read")) return telemetry(out);
  refuse(out, "op must be set, change, drop, rule or read");
}

/* Send as much as the peer has room for; false if it is gone. */
static bool flush(struct peer *p) {
  while (p->sent < p->out.length) {
    ssize_t n = send(p->fd, p->out.data + p->sent, p->out.length - p->sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN;
    p->sent += (size_t)n;
  }
  ar_text_free(&p->out);
  p->sent = 0;
  return true;
}

/* Answer the lines that have come, one after the other, as long as the peer reads. */
static bool work(struct peer *p) {
  char *end;
  while (!p->out.length && (end = memchr(p->line, '\n', p->length))) {
    size_t used = (size_t)(end - p->line) + 1;
    answer(p->line, used - 1, &p->out);
    if (!p->out.data) return false;
    memmove(p->line, end + 1, p->length - used);
    p->length -= used;
    p->since = vc_machine_now();
    if (!flush(p)) return false;
  }
  ar_loop_want(p->fd, p->out.length > 0);
  return p->out.length || p->length < LINE;
}

static void peer_ready(void *peer, int fd, bool writable) {
  struct peer *p = peer;
  bool ok;
  if (writable) {
    ok = flush(p) && work(p);
  } else {
    ssize_t n = recv(fd, p->line + p->length, LINE - p->length, 0);
    if (n > 0) p->length += (size_t)n;
    ok = n > 0 ? work(p) : n < 0 && (errno == EAGAIN || errno == EINTR);
  }
  if (!ok) hang_up(p);
}

/* If there are too many, disconnect the one that has been silent for longest. */
static void make_room(void) {
  struct peer *oldest = peers;
  int count = 0;
  for (struct peer *p = peers; p; p = p->next, count++)
    if (p->since < oldest->since) oldest = p;
  if (count >= PEERS) hang_up(oldest);
}

/* Root and the arbiter's own user may command; the folder's mode says the same. */
static void control_ready(void *unused, int door, bool writable) {
  struct ucred who;
  socklen_t size = sizeof who;
  int fd = ar_loop_accept(door);
  (void)unused, (void)writable;
  if (fd < 0) return;
  make_room();
  struct peer *p = calloc(1, sizeof *p);
  if (!p || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) < 0 ||
      (who.uid != 0 && who.uid != geteuid()) || !ar_loop_watch(fd, peer_ready, p)) {
    free(p);
    close(fd);
    return;
  }
  p->fd = fd;
  p->since = vc_machine_now();
  p->next = peers;
  peers = p;
}

bool ar_control_open(const char **why) {
  static int listener = -1;
  char path[AR_PATH];
  int before = listener;
  *why = "the control socket could not be made";
  if (!ar_path(path, "control.sock")) return false;
  listener = ar_loop_listen(path, SOCK_STREAM, 0600, why);
  ar_loop_unwatch(before);
  if (before >= 0) close(before);
  return listener >= 0 && ar_loop_watch(listener, control_ready, NULL);
}

void ar_control_tick(uint64_t now) {
  for (struct peer *p = peers, *next; p; p = next) {
    next = p->next;
    if (p->out.length && now - p->since > SEND_NS) hang_up(p);
  }
}
