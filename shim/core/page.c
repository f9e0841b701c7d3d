// SPDX-License-Identifier: Apache-2.0
//
// The shared page keeps its address for the life of the process: the daemon's memfd replaces
// anonymous zeros when we join, and zeros replace it when we leave. The kernel swaps a mapping under
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

static void *map_zeros(void) {
  return mmap(NULL, XSW_PAGE_BYTES, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

void xsi_page_init(void) {
  void *reserved = map_zeros();
  if (reserved != MAP_FAILED) xsi_page = reserved;
}

static XSI_FORK_STATE uint32_t joined;

bool xsi_page_joined(void) { return __atomic_load_n(&joined, __ATOMIC_ACQUIRE) != 0; }
void xsi_page_set_joined(bool now) { __atomic_store_n(&joined, now, __ATOMIC_RELEASE); }

uint32_t xsi_page_bytes(uint32_t version) {
  return version < 5 ? XSW_PAGE_BYTES_4 : XSW_PAGE_BYTES;
}

static int check_header(const struct xsw_header *header, uint64_t session_id, uint32_t version) {
  if (__atomic_load_n(&header->magic, __ATOMIC_ACQUIRE) != XSW_PAGE_MAGIC) return -EPROTO;
  if (header->version != version) return -EPROTONOSUPPORT;
  if (header->page_bytes != xsi_page_bytes(version) || header->max_queues != XSW_MAX_QUEUES)
    return -EPROTO;
  return header->session_id == session_id ? 0 : -EPROTO;
}

// Moves a mapping to the page's address. Nothing is charged for that, so it works where a new mapping over
// the page would fail half-way (vm.overcommit_memory=2) and leave a hole that hooks write into. By system
// call: the thread sanitizer takes an mremap for a write to the range, but this one is ordered against every
// reader by the kernel.
static int put_in_place(void *mapping, size_t bytes) {
  long result = syscall(SYS_mremap, mapping, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, xsi_page);
  if (result != -1) return 0;
  int error = errno;
  munmap(mapping, bytes);
  return -error;
}

int xsi_page_join(int memfd, uint64_t session_id, uint32_t version) {
  if (xsi_page == spare) return -ENOMEM;
  // A file that could shrink would kill us with SIGBUS.
  int seals = fcntl(memfd, F_GET_SEALS);
  if (seals < 0) return -errno;
  if ((seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW)) return -EPERM;
  size_t bytes = xsi_page_bytes(version);
  if (lseek(memfd, 0, SEEK_END) != (off_t)bytes) return -EMSGSIZE;
  // What a page of an older version lacks stays as it is, for nobody to read.
  void *probe = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  if (probe == MAP_FAILED) return -errno;
  int result = check_header(probe, session_id, version);
  if (result == 0) return put_in_place(probe, bytes);
  munmap(probe, bytes);
  return result;
}

int xsi_page_leave(void) {
  if (xsi_page == spare) return 0;
  void *empty = map_zeros();
  int result = empty == MAP_FAILED ? -errno : put_in_place(empty, XSW_PAGE_BYTES);
  // The old page stays then: xsi_native already says that nothing in it is obeyed.
  if (result < 0) xsi_log(XSI_WARN, "cannot put an empty page in place: errno=%d", -result);
  return result;
}

void xsi_page_leave_in_child(void) {
  if (xsi_page_leave() < 0)
    xsi_page = spare; // never the parent's; no other thread reads the pointer
}
