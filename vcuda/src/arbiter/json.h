/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON of the control socket: one flat object a line, of strings, integers and booleans. */
#ifndef AR_JSON_H
#define AR_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AR_JSON_FIELDS 16
#define AR_JSON_TEXT 256

enum ar_json_kind { AR_STRING = 1, AR_INTEGER, AR_BOOLEAN };

struct ar_field {
  char name[32];
  enum ar_json_kind kind;
  char text[AR_JSON_TEXT];
  int64_t number;
};

struct ar_object {
  int count;
  struct ar_field field[AR_JSON_FIELDS];
};

/* False, with a reason, for anything but one well-formed flat object. */
bool ar_json_parse(const char *line, size_t length, struct ar_object *out, const char **why);
/* NULL if there is no such field. */
const struct ar_field *ar_json_get(const struct ar_object *object, const char *name);

/* A growing piece of output. */
struct ar_text {
  char *data;
  size_t length, room;
};
__attribute__((format(printf, 2, 3))) void ar_text_add(struct ar_text *text, const char *format,
                                                       ...);
/* Append a string with its quotes. */
void ar_text_quote(struct ar_text *text, const char *string);
void ar_text_free(struct ar_text *text);

#endif
