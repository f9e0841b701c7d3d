// SPDX-License-Identifier: Apache-2.0
//
// The shared page where memory is refused. With vm.overcommit_memory=2 a kernel may unmap what was there
// before it refuses the new mapping: the doubles below do the same.

#include <stdarg.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "fork.h"
#include "page.h"
#include "test_support.h"

#ifndef __SANITIZE_THREAD__ // which needs its own mmap
static bool strict;

static long call(long number, const long *a) {
  long result;
#if defined(__x86_64__)
  register long d __asm__("r10") = a[3], e __asm__("r8") = a[4], f __asm__("r9") = a[5];
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(d), "r"(e), "r"(f)
                   : "rcx", "r11", "memory");
#elif defined(__aarch64__)
  register long n __asm__("x8") = number, b __asm__("x0") = a[0], c __asm__("x1") = a[1];
  register long d __asm__("x2") = a[2], e __asm__("x3") = a[3], f __asm__("x4") = a[4];
  register long g __asm__("x5") = a[5];
  __asm__ volatile("svc 0" : "+r"(b) : "r"(n), "r"(c), "r"(d), "r"(e), "r"(f), "r"(g) : "memory");
  result = b;
#endif
  if (result >= 0 || result < -4095) return result;
  errno = (int)-result;
  return -1;
}

static long map(const long *a) {
  if (!strict || (a[3] & MAP_ANONYMOUS) == 0) return call(SYS_mmap, a);
  if ((a[3] & MAP_FIXED) != 0) call(SYS_munmap, a);
  errno = ENOMEM;
  return -1;
}

long syscall(long number, ...) {
  long a[6];
  va_list list;
  va_start(list, number);
  for (int i = 0; i < 6; i++)
    a[i] = va_arg(list, long);
  va_end(list);
  return number == SYS_mmap ? map(a) : call(number, a);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
  long a[6] = {(long)address, (long)bytes, protection, flags, fd, (long)offset};
  return (void *)map(a);
}

#endif

static int page_of(uint64_t session) {
  int fd = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(fd >= 0 && ftruncate(fd, XSW_PAGE_BYTES) == 0);
  struct xsw_header header = {.magic = XSW_PAGE_MAGIC,
                              .version = XSW_VERSION,
                              .session_id = session,
                              .page_bytes = XSW_PAGE_BYTES,
                              .max_queues = XSW_MAX_QUEUES};
  CHECK(pwrite(fd, &header, sizeof header, 0) == sizeof header);
  CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  return fd;
}

// Every word of the page can be written: where a hole is left, this ends the test.
static void write_everywhere(uint64_t value) {
  for (size_t at = sizeof(struct xsw_header); at < XSW_PAGE_BYTES; at += 512)
    __atomic_store_n((uint64_t *)(void *)(xsi_page + at), value, __ATOMIC_RELAXED);
}

int main(void) {
  alarm(60);
  xsi_page_init();
  unsigned char *at = xsi_page;
  int first = page_of(1);
  CHECK(xsi_page_join(first, 7, XSW_VERSION) == -EPROTO && xsi_header()->magic == 0);
  CHECK(xsi_page_join(first, 1, XSW_VERSION) == 0 && xsi_page == at &&
        xsi_header()->session_id == 1);
  CHECK(xsi_page_leave() == 0 && xsi_header()->magic == 0);
  CHECK(xsi_page_join(first, 1, XSW_VERSION) == 0);
  write_everywhere(5);

#ifndef __SANITIZE_THREAD__
  int second = page_of(2);
  strict = true;
  CHECK(xsi_page_leave() == -ENOMEM);
  CHECK(xsi_header()->session_id == 1); // the old one stays
  write_everywhere(6);
  pid_t child = fork();
  if (child == 0) {
    xsi_page_leave_in_child();
    write_everywhere(7); // not the parent's
    _exit(xsi_header()->magic == 0 && xsi_page != at &&
                  xsi_page_join(second, 2, XSW_VERSION) == -ENOMEM
              ? 0
              : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(*(uint64_t *)(void *)(xsi_page + sizeof(struct xsw_header)) == 6);
  CHECK(xsi_page_join(second, 2, XSW_VERSION) == 0 && xsi_header()->session_id == 2 &&
        xsi_page == at);
  strict = false;
#endif
  CHECK(xsi_page_leave() == 0);
  write_everywhere(8);

#if !defined(__SANITIZE_ADDRESS__) &&                                                              \
    !defined(__SANITIZE_THREAD__) // they need addresses themselves
  struct rlimit none = {1, RLIM_INFINITY}, before;
  CHECK(getrlimit(RLIMIT_AS, &before) == 0 && setrlimit(RLIMIT_AS, &none) == 0);
  CHECK(xsi_page_join(first, 1, XSW_VERSION) == -ENOMEM);
  write_everywhere(9);
  CHECK(xsi_page_leave() == -ENOMEM);
  write_everywhere(10);
  CHECK(setrlimit(RLIMIT_AS, &before) == 0);
#endif
  CHECK(xsi_page_join(first, 1, XSW_VERSION) == 0 && xsi_page_leave() == 0);
  puts("ok page");
  return 0;
}
