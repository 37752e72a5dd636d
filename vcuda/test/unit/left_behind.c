/* SPDX-License-Identifier: Apache-2.0 */
/* What is left on a GPU of processes that have ended, and whose it is. */
#include "arbiter/left_behind.h"
#include "unit.h"

#define MIB (1ull << 20)

static struct ar_left a, b;
static struct ar_baseline baseline;

static void begin(void) {
  a = (struct ar_left){.next = &b};
  b = (struct ar_left){.next = NULL};
  baseline = (struct ar_baseline){0};
}

static void look(uint64_t mib) {
  ar_left_look(&a, &baseline, mib * MIB, true);
}

static void ends(struct ar_left *s, uint64_t mib) {
  s->claimed += mib * MIB;
  s->ended = true;
  s->settled = false;
}

/* What a process held that has ended counts until the driver has freed it. */
static void freed(void) {
  begin();
  look(500); /* the driver's own */
  ends(&a, 900);
  look(1400);
  CHECK(a.claimed == 900 * MIB && !a.proven);
  look(700);
  CHECK(a.claimed == 200 * MIB);
  look(500);
  CHECK(!a.claimed && !a.proven && !b.proven);
}

/* What is still there after a while stays the seat's, for as long as it is there. */
static void stays(void) {
  begin();
  look(500);
  ends(&a, 900);
  look(1200);
  a.settled = true;
  for (int i = 0; i < 10; i++) look(1200);
  CHECK(a.proven == 700 * MIB && !a.claimed);
  look(500); /* one reading is not believed */
  CHECK(a.proven == 700 * MIB);
  look(900), look(800), look(800), look(800);
  CHECK(a.proven == 300 * MIB);
  look(500), look(500), look(500);
  CHECK(!a.proven);
}

/* Nobody pays for what another seat's processes left. */
static void whose(void) {
  begin();
  look(0);
  ends(&a, 600);
  a.settled = true;
  look(600);
  ends(&b, 400);
  b.settled = true;
  look(600); /* all of b's was freed */
  CHECK(a.proven == 600 * MIB && !b.proven && !b.claimed);
  ends(&b, 400);
  b.settled = true;
  look(700);
  CHECK(a.proven == 600 * MIB && b.proven == 100 * MIB);
  look(350), look(350), look(350); /* who let go of it is not known */
  CHECK(a.proven == 300 * MIB && b.proven == 50 * MIB);
}

/* A process that wrote nonsense into its slot before its end does not get away with it. */
static void said_nothing(void) {
  begin();
  look(100);
  a.ended = true;
  a.settled = true;
  look(1000);
  CHECK(a.proven == 900 * MIB);
}

/* What a living process let go of is released only as far as the GPU does not hold it. */
static void let_go(void) {
  begin();
  look(0);
  a.let_go = 300 * MIB;
  look(300);
  CHECK(a.explained == 300 * MIB && !a.proven);
  look(100), look(100);
  CHECK(a.explained == 300 * MIB);
  look(100);
  CHECK(a.explained == 100 * MIB);
  for (int i = 0; i < 20; i++) look(100); /* it is not taken for the driver's own */
  CHECK(a.explained == 100 * MIB);
}

/* The driver's own may grow and shrink; what is there before its end is known is not taken for that. */
static void drivers_own(void) {
  begin();
  for (int i = 0; i < 5; i++) look(200);
  look(700), look(700); /* a process has ended, and nobody has noticed yet */
  ends(&a, 500);
  a.settled = true;
  look(700);
  CHECK(a.proven == 500 * MIB);
  begin();
  for (int i = 0; i < 5; i++) look(200);
  for (int i = 0; i < 5; i++) look(700); /* the driver's, then */
  ends(&a, 500);
  a.settled = true;
  look(700);
  CHECK(!a.proven);
  look(100);
  ends(&a, 500);
  look(600);
  CHECK(a.claimed == 500 * MIB);
}

int main(void) {
  freed();
  stays();
  whose();
  said_nothing();
  let_go();
  drivers_own();
  return 0;
}
