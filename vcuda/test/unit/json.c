/* SPDX-License-Identifier: Apache-2.0 */
/* The control socket's JSON: what is read, what is refused, and a bounded storm of noise. */
#include "arbiter/json.h"
#include "arbiter/saved_seats.h"
#include "unit.h"

#include <string.h>

static bool parse(const char *line, struct ar_object *o) {
  const char *why;
  return ar_json_parse(line, strlen(line), o, &why);
}

static void reads(void) {
  struct ar_object o;
  CHECK(parse(" {\"op\":\"set\", \"n\":-12,\"b\":true,\"t\":\"a\\n\\u0041\\\"\"} ", &o));
  CHECK(o.count == 4 && !strcmp(ar_json_get(&o, "op")->text, "set"));
  CHECK(ar_json_get(&o, "n")->number == -12 && ar_json_get(&o, "b")->kind == AR_BOOLEAN);
  CHECK(!strcmp(ar_json_get(&o, "t")->text, "a\nA\""));
  CHECK(parse("{}", &o) && o.count == 0);
  CHECK(parse("{\"n\":9223372036854775807}", &o));
}

static void refuses(void) {
  static const char *const bad[] = {"",
                                    "{",
                                    "[]",
                                    "{\"a\":1",
                                    "{\"a\" 1}",
                                    "{\"a\":1}x",
                                    "{\"a\":1.5}",
                                    "{\"a\":1e3}",
                                    "{\"a\":}",
                                    "{\"a\":\"x}",
                                    "{\"a\":{}}",
                                    "{\"a\":null}",
                                    "{\"a\":1,\"a\":2}",
                                    "{\"a\":\"\\u0000\"}",
                                    "{\"a\":\"\\q\"}",
                                    "{\"a\":9223372036854775808}",
                                    "{\"a\":\"\\u12\"}",
                                    "{\"a\":1,}"};
  struct ar_object o;
  for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) CHECK(!parse(bad[i], &o));
}

static void quotes(void) {
  struct ar_text t = {0};
  struct ar_object o;
  ar_text_add(&t, "{\"a\":");
  ar_text_quote(&t, "x\"\\\n\tz");
  ar_text_add(&t, "}");
  CHECK(parse(t.data, &o) && !strcmp(ar_json_get(&o, "a")->text, "x\"\\\n\tz"));
  ar_text_free(&t);
}

/* Valid lines with bytes changed, cut and doubled: nothing may be read out of bounds. */
static void storm(void) {
  static const char seed[] =
      "{\"op\":\"set\",\"seat\":\"a.b-c_1\",\"gpu\":0,\"core\":40,\"limit\":70,"
      "\"memory\":4294967296,\"class\":\"in-budget\",\"cgroup\":\"\\u0041/x\"}";
  unsigned state = 7;
  for (int round = 0; round < 200000; round++) {
    size_t length = sizeof seed - 1;
    char *line = malloc(length + 8); /* exact, so that a sanitizer sees one byte too many */
    struct ar_object o;
    struct ar_config config = {0};
    const char *why;
    memcpy(line, seed, length);
    for (unsigned n = unit_random(&state) % 6; n; n--)
      line[unit_random(&state) % length] = (char)unit_random(&state);
    length -= unit_random(&state) % 4 ? 0 : unit_random(&state) % length;
    line = realloc(line, length + 1);
    if (ar_json_parse(line, length, &o, &why)) ar_state_read(&o, &config, &why);
    free(line);
  }
}

int main(void) {
  reads();
  refuses();
  quotes();
  storm();
  return 0;
}
