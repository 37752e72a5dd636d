/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program as an old glibc's linker made them: every symbol that it requires is of version 2.2.5.
 * It is started by its own _start, for today's start files ask for a newer __libc_start_main.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

__asm__(".symver __libc_start_main,__libc_start_main@GLIBC_2.2.5\n"
        ".symver dlsym,dlsym@GLIBC_2.2.5\n"
        ".symver pthread_create,pthread_create@GLIBC_2.2.5\n"
        ".symver pthread_join,pthread_join@GLIBC_2.2.5\n");
__asm__(".globl _start\n_start:\n"
        "xor %ebp, %ebp\nmov %rdx, %r9\npop %rsi\nmov %rsp, %rdx\nand $-16, %rsp\n"
        "push %rax\npush %rsp\nxor %r8d, %r8d\nxor %ecx, %ecx\n"
        "lea main(%rip), %rdi\ncall __libc_start_main@PLT\nhlt\n");

static void *thread(void *unused) {
  return unused;
}

int main(void) {
  pthread_t t;
  int status = 1;
  void *back = NULL;
  if (pthread_create(&t, NULL, thread, &status) || pthread_join(t, &back) || back != &status)
    return 2;
  if (!dlsym(RTLD_DEFAULT, "printf") || dlsym(RTLD_NEXT, "cuNoSuchCall")) return 3;
  pid_t child = fork();
  if (!child) execl("/bin/true", "true", (char *)NULL);
  waitpid(child, &status, 0);
  printf("old %d\n", status);
  return status != 0;
}
