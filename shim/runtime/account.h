/* SPDX-License-Identifier: Apache-2.0
 *
 * What an entry point does before and after the real call, for runtimes whose functions return 0 on
 * success. Streams are the runtime's handles; its default streams are XSI_WORK_LEGACY and
 * XSI_WORK_THREAD.
 */
#ifndef XSCHED_RUNTIME_ACCOUNT_H
#define XSCHED_RUNTIME_ACCOUNT_H

#include "core/counters.h"
#include "core/work.h"

#define XSI_INLINE static inline __attribute__((always_inline))

/* From before the real call to after it. A call is kept in registers, a wait in memory. */
enum xsi_mode { XSI_PLAIN, XSI_COUNTED, XSI_CAPTURED };
struct xsi_call {
  struct xsi_work_stream *work; /* NULL: not accounted for */
  enum xsi_mode mode;
};
struct xsi_wait {
  struct xsi_call call;
  struct xsi_work_context *excluded; /* of a capture that begins or ends */
  uint64_t mark;
  /* of a copy that may wait */
  bool waits, learns;
  uint64_t begun_ns; /* 0: its time does not matter */
};

/* What differs between runtimes. */
struct xsi_account {
  /* Counts the call; false: disabled. A call may wait for the device, so enter releases batches first;
   * enter_submit is for calls that never wait. */
  bool (*enter)(void), (*enter_submit)(void);
  struct xsi_call (*begin)(uintptr_t stream); /* as for a launch, after enter */
  struct xsi_work_stream *(*work)(uintptr_t stream);
  /* Does what goes into the stream become part of a graph? Asked only while there are captures. */
  bool (*is_capturing)(uintptr_t stream);
  bool (*still_capturing)(uintptr_t stream); /* after a call that failed: keeps its error */
  void (*unknown)(uintptr_t stream);         /* work that has no record yet; NULL: ignored */
  int not_ready;                             /* what a query returns while work is left */
};

static inline bool xsi_captured(const struct xsi_account *account, uintptr_t stream) {
  return XSI_UNLIKELY(__atomic_load_n(&xsi_work_hot.captures, __ATOMIC_SEQ_CST) != 0) &&
         account->is_capturing(stream);
}

/* ---- work ------------------------------------------------------------------------- */

/* Work into any stream. A runtime inlines the common case of a launch in its own begin_launch. */
struct xsi_call xsi_begin_work(const struct xsi_account *account, uintptr_t stream,
                               uintptr_t kernel);
int xsi_end_work(struct xsi_call call, int result);
struct xsi_call xsi_begin_copy(const struct xsi_account *account, uintptr_t stream);
int xsi_end_copy(struct xsi_call call, int result);

XSI_INLINE int xsi_end_launch(struct xsi_call call, int result) {
  if (XSI_UNLIKELY(result != 0)) {
    if (call.work) xsi_work_withdraw(call.work);
    return result;
  }
  if (XSI_LIKELY(call.mode == XSI_COUNTED))
    xsi_count(launches, 1);
  else if (call.mode == XSI_CAPTURED)
    xsi_count(captured, 1);
  if (XSI_LIKELY(call.work != NULL)) {
    struct xsw_queue *slot = xsi_work_slot(call.work);
    uint32_t tell = __atomic_load_n(&slot->tell, __ATOMIC_RELAXED);
    if (XSI_UNLIKELY((tell & XSW_TELL_PROGRESS) != 0)) xsi_work_tell(call.work, tell);
    xsi_work_landed(call.work);
  }
  return result;
}

/* Copies that are over when the call returns, and so is all that was in their stream before. */
void xsi_begin_wait(const struct xsi_account *account, struct xsi_wait *wait, uintptr_t stream);
int xsi_end_wait(struct xsi_wait *wait, int result);

/* Copies that may wait, depending on memory or driver: what they waited for is asked, never assumed. True: the
 * copy counts, and the caller finds out whether it may wait. It is a wait from the beginning of the call
 * (xsi_maybe_waits), or if the call takes as long as one (xsi_maybe_timed). */
bool xsi_begin_maybe(const struct xsi_account *account, struct xsi_wait *wait, uintptr_t stream);
void xsi_maybe_waits(struct xsi_wait *wait);
void xsi_maybe_timed(struct xsi_wait *wait);
/* A small copy from the host. Documentation and drivers differ on whether it waits for earlier work: true if
 * there is some other than such copies, and the last such copy waited. */
bool xsi_maybe_small(struct xsi_wait *wait);
int xsi_end_maybe(struct xsi_wait *wait, uintptr_t stream, int result);

/* ---- waits, events, captures --------------------------------------------------------- */

void xsi_begin_sync(const struct xsi_account *account, struct xsi_wait *wait, uintptr_t stream);
int xsi_end_sync(struct xsi_wait *wait, int result);
void xsi_begin_query(const struct xsi_account *account, struct xsi_wait *wait, uintptr_t stream);
int xsi_end_query(const struct xsi_account *account, struct xsi_wait *wait, int result);
void xsi_begin_await(const struct xsi_account *account, uintptr_t stream);
void xsi_begin_record(const struct xsi_account *account, struct xsi_wait *wait, const void *event,
                      uintptr_t stream);
int xsi_end_record(struct xsi_wait *wait, const void *event, int result);

void xsi_capture_begin(const struct xsi_account *account, struct xsi_wait *wait, uintptr_t stream);
int xsi_capture_begin_done(struct xsi_wait *wait, int result);
void xsi_capture_end(const struct xsi_account *account, struct xsi_wait *wait, uintptr_t stream);
int xsi_capture_end_done(const struct xsi_account *account, struct xsi_wait *wait, int result);
struct xsi_work_context *xsi_capture_wait(const struct xsi_account *account, uintptr_t stream,
                                          const void *event);
int xsi_capture_wait_done(struct xsi_work_context *excluded, int result);

#endif /* XSCHED_RUNTIME_ACCOUNT_H */
