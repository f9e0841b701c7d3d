// SPDX-License-Identifier: Apache-2.0
//
// Stubs. A closed batch must not outlive the beginning of a call that may wait for it. Hooks take care of the
// calls that are accounted for. All other entry points, also those that this library has never heard of, get a
// stub, unless they are known to return at once. stub.inc has the code, which knows no parameters.
//
// Named stubs are slots like hooks, for programs that link the driver or look names up. cuGetProcAddress may
// answer with addresses that have no name: for these there are unnamed stubs, one per address.

#include "stub.h"

#include <errno.h>

#include "account.h"

enum {
  UNNAMED = XSI_CU_UNNAMED, /* three times what the libraries of CUDA 13 ask for */
  STUB_BYTES = 32,          /* stub.inc */
};

extern void xsi_cu_stub_slow(void) __attribute__((visibility("hidden")));
extern char xsi_cu_unnamed_stubs[] __attribute__((visibility("hidden")));
void *xsi_cu_stub(unsigned number, const uintptr_t *arguments)
    __attribute__((visibility("hidden")));

/* Where a stub jumps while no batch is closed; by slot, then by unnamed stub. Atomic. */
__attribute__((visibility("hidden"))) void *xsi_cu_stub_targets[XSI_CU_HOOKS + UNNAMED] = {
    [0 ... XSI_CU_HOOKS + UNNAMED - 1] = (void *)xsi_cu_stub_slow};

// An address, and the kind in the highest byte, where user space has no addresses. Atomic; filled in order.
static uint64_t unnamed[UNNAMED];
#define ADDRESS_BITS 56
#define ADDRESS(entry) ((void *)(uintptr_t)((entry) & (((uint64_t)1 << ADDRESS_BITS) - 1)))

static int not_found(void) { return XSI_CU_NOT_FOUND; }

static bool about_known_kernel(const uintptr_t *arguments) {
  uintptr_t context = (uintptr_t)xsi_cu_context();
  for (unsigned i = 0; i < 3; i++) // the kernel is one of the first three
    if (xsi_work_has_launched(context, arguments[i])) return true;
  return false;
}

// It may use memory in a way that we do not know.
static void wait_for_memory(void) {
  xsi_move_enter();
  xsi_move_leave();
}

static void prepare(enum xsi_cu_stub_kind kind, const uintptr_t *arguments) {
  wait_for_memory();
  switch (kind) {
  case XSI_CU_CODE:
    if (!about_known_kernel(arguments)) xsi_work_open();
    break;
  case XSI_CU_SHARES: xsi_work_never_batch(); break;
  case XSI_CU_EVENTS:
    __atomic_store_n(&xsi_cu_graph_events, true, __ATOMIC_RELAXED);
    xsi_work_open();
    break;
  case XSI_CU_UNLOADS:
    xsi_work_forget_kernels();
    xsi_work_open();
    break;
  default: xsi_work_open(); break;
  }
}

// Called by stub.inc with the caller's integer arguments; returns where to go on.
void *xsi_cu_stub(unsigned number, const uintptr_t *arguments) {
  int saved_errno = errno;
  enum xsi_cu_stub_kind kind;
  void *real;
  if (number < XSI_CU_HOOKS) {
    kind = xsi_cu_stub_kinds[number];
    real = xsi_cu_slot(number);
  } else {
    uint64_t entry = __atomic_load_n(&unnamed[number - XSI_CU_HOOKS], __ATOMIC_ACQUIRE);
    kind = entry >> ADDRESS_BITS;
    real = ADDRESS(entry);
  }
  prepare(kind, arguments);
  bool always = kind == XSI_CU_SHARES || kind == XSI_CU_UNLOADS || kind == XSI_CU_EVENTS;
  if (real && !always) __atomic_store_n(&xsi_cu_stub_targets[number], real, __ATOMIC_RELEASE);
  errno = saved_errno;
  return real ? real : (void *)not_found;
}

static void *unnamed_stub(enum xsi_cu_stub_kind kind, void *address) {
  uint64_t entry = (uint64_t)kind << ADDRESS_BITS | (uintptr_t)address;
  for (unsigned i = 0; i < UNNAMED; i++) {
    uint64_t there = 0;
    if (__atomic_compare_exchange_n(&unnamed[i], &there, entry, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST) ||
        ADDRESS(there) == address)
      return xsi_cu_unnamed_stubs + (size_t)i * STUB_BYTES;
  }
  xsi_work_never_batch(); // this call would not be seen
  return address;
}

void *xsi_cu_stub_for(const char *name, void *address) {
  int known = xsi_runtime_known(&xsi_cu_runtime, name);
  enum xsi_cu_stub_kind kind = known < 0 ? XSI_CU_OPENS : xsi_cu_known_kinds[known];
  return kind == XSI_CU_NO_STUB ? address : unnamed_stub(kind, address);
}
