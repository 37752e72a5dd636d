/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that has nothing to do with CUDA: it must not notice the limiter.
 *
 *   plain        change nothing, fork, execute another program
 *   plain maps   say as which user it runs and whether the limiter is in it
 *   plain x      end at once
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int maps(void) {
  char line[512];
  int loaded = 0;
  FILE *file = fopen("/proc/self/maps", "r");
  while (file && fgets(line, sizeof line, file)) loaded |= strstr(line, "libvcuda.so") != NULL;
  if (file) fclose(file);
  printf("user %d, effective %d, %s\n", (int)getuid(), (int)geteuid(), loaded ? "with" : "without");
  return 0;
}

int main(int argc, char **argv) {
  if (argc > 1) return strcmp(argv[1], "maps") ? 0 : maps();
  mode_t mask = umask(022);
  umask(mask);
  pid_t child = fork();
  if (child == 0) {
    char *const arguments[] = {"/bin/true", NULL};
    execv(arguments[0], arguments);
    _exit(9);
  }
  int status = 1;
  waitpid(child, &status, 0);
  printf("plain %o %d\n", (unsigned)mask, status);
  return status != 0;
}
