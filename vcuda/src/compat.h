/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bind to the oldest version of each libc symbol, so that a library built against a new glibc loads
 * in an old image. glibc 2.33 and 2.34 gave new versions to old functions when they moved into
 * libc. The build checks the result: no symbol newer than glibc 2.17.
 */
#ifndef VC_COMPAT_H
#define VC_COMPAT_H

/* Not for a sanitizer, which brings its own and runs on the machine that built it. */
#if (defined(__GLIBC__) || defined(__linux__)) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if defined(__x86_64__)
#define VC_OLDEST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define VC_OLDEST "GLIBC_2.17"
#else
#error "add the oldest glibc version of this architecture to compat.h"
#endif
#define VC_PIN(symbol) __asm__(".symver " #symbol "," #symbol "@" VC_OLDEST)
VC_PIN(dlopen);
VC_PIN(pthread_create);
VC_PIN(pthread_sigmask);
VC_PIN(pthread_detach);
VC_PIN(pthread_key_create);
VC_PIN(pthread_setspecific);
VC_PIN(pthread_setcancelstate);
#endif

#endif
