/* SPDX-License-Identifier: Apache-2.0 */
#include "json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
  const char *at, *end;
  const char *why;
};

static void skip(struct reader *r) {
  while (r->at < r->end && strchr(" \t\r\n", *r->at) && *r->at) r->at++;
}

static bool eat(struct reader *r, char c) {
  skip(r);
  if (r->at >= r->end || *r->at != c) return false;
  r->at++;
  return true;
}

static bool fail(struct reader *r, const char *why) {
  if (!r->why) r->why = why;
  return false;
}

static int hex4(struct reader *r) {
  int value = 0;
  if (r->end - r->at < 4) return -1;
  for (int i = 0; i < 4; i++) {
    const char *digits = "0123456789abcdef", c = *r->at++;
    const char *found = c ? strchr(digits, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;
    if (!found) return -1;
    value = value * 16 + (int)(found - digits);
  }
  return value;
}

/* Escapes beyond ASCII are refused: no name here needs one. */
static int escaped(struct reader *r) {
  if (r->at >= r->end) return -1;
  char c = *r->at++;
  switch (c) {
  case '"':
  case '\\':
  case '/':
    return c;
  case 'n':
    return '\n';
  case 't':
    return '\t';
  case 'r':
    return '\r';
  case 'b':
    return '\b';
  case 'f':
    return '\f';
  case 'u': {
    int value = hex4(r);
    return value > 0 && value < 128 ? value : -1;
  }
  default:
    return -1;
  }
}

static bool string(struct reader *r, char *out, size_t size) {
  size_t n = 0;
  if (!eat(r, '"')) return fail(r, "a string was expected");
  while (r->at < r->end && *r->at != '"') {
    int c = (unsigned char)*r->at++;
    if (c < 0x20) return fail(r, "a control character in a string");
    if (c == '\\' && (c = escaped(r)) < 0) return fail(r, "an escape that is not understood");
    if (n + 1 >= size) return fail(r, "a string is too long");
    out[n++] = (char)c;
  }
  if (r->at >= r->end) return fail(r, "a string does not end");
  r->at++;
  out[n] = 0;
  return true;
}

static bool integer(struct reader *r, int64_t *out) {
  bool negative = r->at < r->end && *r->at == '-';
  uint64_t value = 0;
  if (negative) r->at++;
  const char *first = r->at;
  while (r->at < r->end && *r->at >= '0' && *r->at <= '9') {
    unsigned digit = (unsigned)(*r->at++ - '0');
    if (value > ((uint64_t)INT64_MAX - digit) / 10) return fail(r, "a number is too large");
    value = value * 10 + digit;
  }
  if (r->at == first) return fail(r, "a value was expected");
  if (r->at < r->end && strchr(".eE", *r->at) && *r->at) return fail(r, "a number is not whole");
  *out = negative ? -(int64_t)value : (int64_t)value;
  return true;
}

static bool word(struct reader *r, const char *text) {
  size_t n = strlen(text);
  if ((size_t)(r->end - r->at) < n || memcmp(r->at, text, n)) return false;
  r->at += n;
  return true;
}

static bool value(struct reader *r, struct ar_field *f) {
  skip(r);
  if (r->at < r->end && *r->at == '"') {
    f->kind = AR_STRING;
    return string(r, f->text, sizeof f->text);
  }
  f->kind = AR_BOOLEAN;
  f->number = 1;
  if (word(r, "true")) return true;
  f->number = 0;
  if (word(r, "false")) return true;
  f->kind = AR_INTEGER;
  return integer(r, &f->number);
}

static bool object(struct reader *r, struct ar_object *out) {
  if (!eat(r, '{')) return fail(r, "an object was expected");
  if (eat(r, '}')) return true;
  do {
    if (out->count == AR_JSON_FIELDS) return fail(r, "too many fields");
    struct ar_field *f = &out->field[out->count];
    if (!string(r, f->name, sizeof f->name)) return false;
    if (ar_json_get(out, f->name)) return fail(r, "a field comes twice");
    if (!eat(r, ':')) return fail(r, "a colon was expected");
    if (!value(r, f)) return false;
    out->count++;
  } while (eat(r, ','));
  return eat(r, '}') || fail(r, "a comma or the end of the object was expected");
}

bool ar_json_parse(const char *line, size_t length, struct ar_object *out, const char **why) {
  struct reader r = {line, line + length, NULL};
  memset(out, 0, sizeof *out);
  bool ok = object(&r, out);
  skip(&r);
  if (ok && r.at != r.end) ok = fail(&r, "something follows the object");
  *why = r.why;
  return ok;
}

const struct ar_field *ar_json_get(const struct ar_object *object, const char *name) {
  for (int i = 0; i < object->count; i++)
    if (!strcmp(object->field[i].name, name)) return &object->field[i];
  return NULL;
}

void ar_text_add(struct ar_text *text, const char *format, ...) {
  va_list list, again;
  va_start(list, format);
  va_copy(again, list);
  int n = vsnprintf(NULL, 0, format, list);
  va_end(list);
  if (n > 0 && text->length + (size_t)n + 1 > text->room) {
    size_t room = 2 * (text->length + (size_t)n + 1);
    char *data = realloc(text->data, room);
    if (data) {
      text->data = data;
      text->room = room;
    }
  }
  if (n > 0 && text->length + (size_t)n + 1 <= text->room) {
    vsnprintf(text->data + text->length, (size_t)n + 1, format, again);
    text->length += (size_t)n;
  }
  va_end(again);
}

void ar_text_quote(struct ar_text *text, const char *string) {
  ar_text_add(text, "\"");
  for (const unsigned char *c = (const unsigned char *)string; *c; c++) {
    if (*c == '"' || *c == '\\')
      ar_text_add(text, "\\%c", *c);
    else if (*c < 0x20)
      ar_text_add(text, "\\u%04x", *c);
    else
      ar_text_add(text, "%c", *c);
  }
  ar_text_add(text, "\"");
}

void ar_text_free(struct ar_text *text) {
  free(text->data);
  *text = (struct ar_text){0};
}
