/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "saved_seats.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[AR_PATH];

bool ar_path(char out[AR_PATH], const char *format, ...) {
  va_list list;
  int n = snprintf(out, AR_PATH, "%s/", folder);
  va_start(list, format);
  int more = vsnprintf(out + n, AR_PATH - (size_t)n, format, list);
  va_end(list);
  return n + more < AR_PATH;
}

static bool make(const char *path, mode_t mode) {
  return mkdir(path, mode) == 0 || errno == EEXIST;
}

static bool make_parents(const char *path) {
  char part[AR_PATH];
  for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
    if (!make(part, 0755)) return false;
  }
  return true;
}

bool ar_folder_open(const char *path, const char **why) {
  *why = "the folder's path is too long";
  if (strlen(path) >= sizeof folder) return false;
  strcpy(folder, path);
  *why = "the folder cannot be made";
  return ar_folder_make();
}

bool ar_folder_make(void) {
  char sub[AR_PATH];
  if (!make_parents(folder) || !make(folder, 0700)) return false;
  /* Containers see only seats/NAME, which is mounted for them; the rest is private. */
  return ar_path(sub, "seats") && make(sub, 0711) && ar_path(sub, "state") && make(sub, 0700);
}

static bool name_ok(const char *name) {
  size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
  return n && !name[n] && *name != '.' && n < AR_NAME;
}

static bool number(const struct ar_field *f, int64_t *out) {
  *out = f->number;
  return f->kind == AR_INTEGER && f->number >= 0;
}

static bool known_number(const char *name) {
  static const char *const names[] = {"gpu", "core", "limit", "memory", "pid"};
  for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(name, names[i])) return true;
  return false;
}

/* Read one field of a request; NULL if it is valid, else what is wrong with it. */
static const char *take(const struct ar_field *f, struct ar_config *c) {
  int64_t n = 0;
  if (!strcmp(f->name, "op")) return NULL;
  if (!strcmp(f->name, "seat")) {
    if (f->kind != AR_STRING || !name_ok(f->text))
      return "a seat's name has letters, digits, '.', '_', '-'";
    strcpy(c->name, f->text);
  } else if (!strcmp(f->name, "class")) {
    bool background = !strcmp(f->text, "background"); /* what is no string has no text */
    if (!background && strcmp(f->text, "in-budget")) return "class must be in-budget or background";
    c->vclass = background ? VC_BACKGROUND : VC_IN_BUDGET;
  } else if (!strcmp(f->name, "cgroup")) {
    if (f->kind != AR_STRING) return "cgroup must be a string";
    strcpy(c->cgroup, f->text);
  } else if (!number(f, &n)) {
    return known_number(f->name) ? "gpu, core, limit, memory and pid are whole numbers, 0 or more"
                                 : "a field that is not known";
  } else if (!strcmp(f->name, "gpu")) {
    c->gpu = n < 1024 ? (int)n : 1024;
  } else if (!strcmp(f->name, "core")) {
    c->core = n < 1000 ? (uint32_t)n : 1000;
  } else if (!strcmp(f->name, "limit")) {
    c->limit = n < 1000 ? (uint32_t)n : 1000;
  } else if (!strcmp(f->name, "memory")) {
    c->memory = (uint64_t)n;
  } else if (!strcmp(f->name, "pid")) {
    if (n > INT32_MAX) return "pid names no process";
    c->root = (pid_t)n;
  } else {
    return "a field that is not known";
  }
  return NULL;
}

bool ar_state_read(const struct ar_object *object, struct ar_config *config, const char **why) {
  for (int i = 0; i < object->count; i++) {
    *why = take(&object->field[i], config);
    if (*why) return false;
  }
  return true;
}

static void write_config(const struct ar_config *c, struct ar_text *out) {
  ar_text_add(out, "{\"seat\":");
  ar_text_quote(out, c->name);
  ar_text_add(out,
              ",\"gpu\":%d,\"core\":%u,\"limit\":%u,\"memory\":%llu,\"class\":\"%s\",\"pid\":%d",
              c->gpu, c->core, c->limit, (unsigned long long)c->memory,
              c->vclass == VC_IN_BUDGET ? "in-budget" : "background", (int)c->root);
  if (*c->cgroup) {
    ar_text_add(out, ",\"cgroup\":");
    ar_text_quote(out, c->cgroup);
  }
  ar_text_add(out, "}\n");
}

bool ar_state_save(const struct ar_config *config) {
  char path[AR_PATH], part[AR_PATH];
  struct ar_text text = {0};
  if (!ar_path(path, "state/%s.json", config->name) || !ar_path(part, "state/.%s", config->name))
    return false;
  write_config(config, &text);
  int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  bool ok = fd >= 0 && text.data && write(fd, text.data, text.length) == (ssize_t)text.length;
  if (fd >= 0) close(fd);
  ar_text_free(&text);
  return ok && rename(part, path) == 0;
}

void ar_state_forget(const char *name) {
  char path[AR_PATH];
  if (ar_path(path, "state/%s.json", name)) unlink(path);
  if (ar_path(path, "state/%s.held", name)) unlink(path);
}

/* Written in place, in one call: it is short, and a new arbiter reads it only after we are gone. */
bool ar_state_keep(const char *name, const void *data, size_t size) {
  char path[AR_PATH];
  if (!ar_path(path, "state/%s.held", name)) return false;
  int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  bool ok = fd >= 0 && pwrite(fd, data, size, 0) == (ssize_t)size && !ftruncate(fd, (off_t)size);
  if (fd >= 0) close(fd);
  return ok;
}

size_t ar_state_kept(const char *name, void *out, size_t size) {
  char path[AR_PATH];
  if (!ar_path(path, "state/%s.held", name)) return 0;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd >= 0 ? read(fd, out, size) : -1;
  if (fd >= 0) close(fd);
  return n > 0 ? (size_t)n : 0;
}

static bool load(const char *file, struct ar_config *config) {
  char path[AR_PATH], line[2048];
  struct ar_object object;
  const char *why;
  if (!ar_path(path, "state/%s", file)) return false;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd >= 0 ? read(fd, line, sizeof line) : -1;
  if (fd >= 0) close(fd);
  *config = (struct ar_config){0};
  return n > 0 && ar_json_parse(line, (size_t)n, &object, &why) &&
         ar_state_read(&object, config, &why);
}

int ar_state_each(void (*visit)(const struct ar_config *)) {
  char path[AR_PATH];
  int count = 0;
  DIR *dir = ar_path(path, "state") ? opendir(path) : NULL;
  for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) {
    struct ar_config config;
    size_t n = strlen(e->d_name);
    if (*e->d_name == '.' || n < 6 || strcmp(e->d_name + n - 5, ".json")) continue;
    if (!load(e->d_name, &config)) continue;
    count++;
    if (visit) visit(&config);
  }
  if (dir) closedir(dir);
  return count;
}
