/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "control.h"
#include "audit.h"
#include "gpu.h"
#include "json.h"
#include "seat.h"
#include "state.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINE 4096
#define SEND_MS 1000

struct peer {
  int fd;
  size_t length;
  char line[LINE];
};

/* Root and the arbiter's own user may command; the folder's mode says the same. */
void *ar_control_open(int fd) {
  struct ucred who;
  socklen_t size = sizeof who;
  struct peer *p = calloc(1, sizeof *p);
  if (!p || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) < 0 ||
      (who.uid != 0 && who.uid != geteuid())) {
    free(p);
    close(fd);
    return NULL;
  }
  p->fd = fd;
  return p;
}

void ar_control_close(void *peer) {
  struct peer *p = peer;
  close(p->fd);
  free(p);
}

static void refuse(struct ar_text *out, const char *why) {
  ar_text_add(out, "{\"ok\":false,\"error\":");
  ar_text_quote(out, why);
  ar_text_add(out, "}\n");
}

static void set(const struct ar_object *request, bool change, struct ar_text *out) {
  const struct ar_field *name = ar_json_get(request, "seat");
  struct ar_seat *known = name && name->kind == AR_STRING ? ar_seat_find(name->text) : NULL;
  struct ar_config config = {0};
  const char *why = "no such seat";
  char path[AR_PATH];
  if (change && known) config = known->config;
  if (change && !known) return refuse(out, why);
  if (!ar_state_read(request, &config, &why)) return refuse(out, why);
  if (!config.limit) config.limit = 100;
  struct ar_seat *seat = ar_seat_set(&config, &why);
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

#define U(x) ((unsigned long long)(x))

static void tell_seat(const struct ar_seat *s, struct ar_text *out, uint64_t now) {
  const struct ar_config *c = &s->config;
  struct ar_totals t = ar_seat_totals(s);
  const struct ar_member *m = &s->member;
  uint64_t granted = m->granted + (m->open && now > m->opened_at ? now - m->opened_at : 0);
  ar_text_add(out, "{\"seat\":");
  ar_text_quote(out, c->name);
  ar_text_add(out,
              ",\"gpu\":%d,\"core\":%u,\"limit\":%u,\"memory_limit\":%llu,\"class\":\"%s\","
              "\"processes\":%d,\"wall_ns\":%llu,\"busy_ns\":%llu,\"charged_ns\":%llu,"
              "\"granted_ns\":%llu,\"grants\":%llu,\"waited_ns\":%llu,\"launches\":%llu,"
              "\"memory\":%llu,\"memory_peak\":%llu,\"memory_overhead\":%llu}",
              c->gpu, c->core, c->limit, U(c->memory),
              c->vclass == VC_IN_BUDGET ? "in-budget" : "background", t.processes,
              U(now - s->since), U(t.busy), U(m->used), U(granted), U(m->grants), U(t.waited),
              U(t.launches), U(t.memory), U(t.peak), U(atomic_load(&s->policy->overhead)));
}

static void telemetry(struct ar_text *out) {
  uint64_t now = vc_now();
  ar_text_add(out, "{\"ok\":true,\"now_ns\":%llu,\"pid\":%d,\"gpus\":[", U(now), (int)getpid());
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
  ar_audit_write(out);
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
  if (!strcmp(what, "read")) return telemetry(out);
  refuse(out, "op must be set, change, drop or read");
}

/* Waits a bounded time for a peer that does not read. */
static bool send_all(int fd, const char *data, size_t length) {
  while (length) {
    ssize_t n = send(fd, data, length, MSG_NOSIGNAL);
    if (n > 0) {
      data += n;
      length -= (size_t)n;
      continue;
    }
    struct pollfd ready = {fd, POLLOUT, 0};
    if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (poll(&ready, 1, SEND_MS) != 1) return false;
  }
  return true;
}

bool ar_control_read(void *peer) {
  struct peer *p = peer;
  ssize_t n = recv(p->fd, p->line + p->length, LINE - p->length, 0);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  p->length += (size_t)n;
  bool ok = true;
  char *end;
  while (ok && (end = memchr(p->line, '\n', p->length))) {
    struct ar_text out = {0};
    size_t used = (size_t)(end - p->line) + 1;
    answer(p->line, used - 1, &out);
    ok = out.data && send_all(p->fd, out.data, out.length);
    ar_text_free(&out);
    memmove(p->line, end + 1, p->length - used);
    p->length -= used;
  }
  return ok && p->length < LINE;
}
