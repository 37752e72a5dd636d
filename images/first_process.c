/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first process of the sidecar's container: it starts PROGRAM (slicekeeper, in Python) with its own arguments, and
 * ends within a second of SIGTERM, with exit code 0, whatever PROGRAM is doing.
 *
 * The kernel drops a signal that a first process has no handler for, and at the sidecar's 50m of CPU Python takes
 * seconds until it can have one. Later it may be waiting for a name server or a disk. The pod would hold its GPUs until
 * kubelet kills the sidecar after the pod's grace period, with 137, which a Job may count against the user's program.
 * So this program blocks the signals with its first instructions, because a blocked signal is kept, and waits for them.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* After SIGTERM; the rest of the second is for the container runtime, and for a control group without CPU time left. */
#define GRACE_MS 700

static long now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Wait for one of the signals, until `end` if that is not 0; return the signal, or -1 at the end. */
static int wait_for(const sigset_t *signals, long end) {
  if (!end) return sigwaitinfo(signals, NULL);
  long left = end - now_ms();
  if (left <= 0) return -1;
  return sigtimedwait(signals, NULL, &(struct timespec){left / 1000, left % 1000 * 1000000});
}

/* Take the exit of every process that has ended: a first process also inherits orphans. Return whether `child` has. */
static int reap(pid_t child, int *status) {
  int ended = 0, one;
  for (pid_t pid; (pid = waitpid(-1, &one, WNOHANG)) > 0;)
    if (pid == child) {
      *status = one;
      ended = 1;
    }
  return ended;
}

int main(int argc, char **argv) {
  sigset_t signals, before;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGCHLD);
  sigprocmask(SIG_BLOCK, &signals, &before);
  signal(SIGCHLD, SIG_DFL); /* if it were ignored, there would be no exit to take */
  (void)argc;

  pid_t child = fork();
  if (child < 0) {
    perror("fork");
    return 1;
  }
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    argv[0] = PROGRAM;
    execv(PROGRAM, argv);
    perror(PROGRAM);
    _exit(127);
  }

  for (long end = 0;;) {
    int status, number = wait_for(&signals, end);
    if (reap(child, &status)) {
      if (end) return 0;
      if (WIFEXITED(status)) return WEXITSTATUS(status);
      fprintf(stderr, "%s: ended by signal %d\n", PROGRAM, WTERMSIG(status));
      return 1; /* and never 137, which means that the node killed the container */
    }
    if (end && now_ms() >= end) {
      kill(child, SIGKILL);
      return 0;
    }
    if (!end && (number == SIGTERM || number == SIGINT)) {
      end = now_ms() + GRACE_MS;
      kill(child, SIGTERM);
    }
  }
}
