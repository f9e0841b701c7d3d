// SPDX-License-Identifier: Apache-2.0
//
// The shared page keeps its address for the life of the process: the daemon's memfd is mapped over
// anonymous zeros when we join and zeros over it when we leave. The kernel swaps a mapping under
// its own lock, so hooks read and write through a constant pointer without one of ours; the queue
// lock, held here, only keeps what is published consistent.

#include "page.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"

// Zeros to read from if even the reservation fails; nothing is ever joined then.
static unsigned char spare[XSW_PAGE_BYTES] __attribute__((aligned(64)));
unsigned char *xsi_page = spare;

void xsi_page_init(void) {
  void *reserved = mmap(NULL, XSW_PAGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved != MAP_FAILED) xsi_page = reserved;
}

static uint32_t joined;

bool xsi_page_joined(void) { return __atomic_load_n(&joined, __ATOMIC_ACQUIRE) != 0; }
void xsi_page_set_joined(bool now) { __atomic_store_n(&joined, now, __ATOMIC_RELEASE); }

static int check_header(const struct xsw_header *header, uint64_t session_id) {
  if (__atomic_load_n(&header->magic, __ATOMIC_ACQUIRE) != XSW_PAGE_MAGIC) return -EPROTO;
  if (header->version != XSW_VERSION) return -EPROTONOSUPPORT;
  if (header->page_bytes != XSW_PAGE_BYTES || header->max_queues != XSW_MAX_QUEUES) return -EPROTO;
  return header->session_id == session_id ? 0 : -EPROTO;
}

// By system call: the thread sanitizer takes an mmap for a write to the range, but this one is
// ordered against every reader by the kernel.
static int swap(int flags, int fd) {
  long result = syscall(SYS_mmap, xsi_page, (size_t)XSW_PAGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_FIXED | flags, fd, 0L);
  return result == -1 ? -errno : 0;
}

int xsi_page_join(int memfd, uint64_t session_id) {
  if (xsi_page == spare) return -ENOMEM;
  // A file that could shrink would kill us with SIGBUS.
  int seals = fcntl(memfd, F_GET_SEALS);
  if (seals < 0) return -errno;
  if ((seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW)) return -EPERM;
  if (lseek(memfd, 0, SEEK_END) != XSW_PAGE_BYTES) return -EMSGSIZE;
  // First elsewhere: a MAP_FIXED that fails may leave a hole where hooks write.
  void *probe = mmap(NULL, XSW_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  if (probe == MAP_FAILED) return -errno;
  int result = check_header(probe, session_id);
  if (result == 0) {
    result = swap(MAP_SHARED, memfd);
    if (result < 0) xsi_page_leave();
  }
  munmap(probe, XSW_PAGE_BYTES);
  return result;
}

void xsi_page_leave(void) {
  if (xsi_page == spare) return;
  // If this fails the old page stays: xsi_native already says that nothing in it is obeyed.
  int result = swap(MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
  if (result < 0) xsi_log(XSI_WARN, "cannot put an empty page in place: errno=%d", -result);
}
