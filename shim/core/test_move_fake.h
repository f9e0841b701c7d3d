/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of movable memory: a device that keeps one word per granule, and notices work and copies that touch
 * memory which is not there; and a daemon's orders.
 */
#ifndef XSCHED_TEST_MOVE_FAKE_H
#define XSCHED_TEST_MOVE_FAKE_H

#include "test_support.h"

#include "core/move.h"
#include "core/work_internal.h"

#define MIB (1ull << 20)
#define GRANULE XSI_MOVE_GRANULE
#define BASE 0x7000000000ull /* of the device's addresses */

enum fake_op { CREATE, MAP, UNMAP, PIN, COPY, FINISH, SETTLE, OPS };

/* The next call of an operation after `after` others fails with error, for so many calls, or takes slow_ms. */
struct fake_fault {
  uint32_t after, times;
  int error;
  uint32_t slow_ms;
};
extern struct fake_fault fake_faults[OPS];
void fake_fail(enum fake_op op, uint32_t after, uint32_t times, int error);
void fake_slow(enum fake_op op, uint32_t ms);
void fake_heal(void);
uint32_t fake_calls(enum fake_op op);

extern uint64_t fake_room;   /* atomic; free bytes of the device */
extern uint64_t fake_missed; /* atomic; touched memory that was not mapped */
extern uint64_t fake_pinned; /* atomic; bytes */
uint64_t fake_mapped(void);  /* bytes that are mapped now */

extern const struct xsi_move_platform fake_moves;
extern const struct xsi_move_device fake_device;
extern const struct xsi_work_platform fake_work;
#define FAKE_CONTEXT ((uintptr_t)0x4000)

/* A block of the program's at an address of its own, between enter and leave; 0 or an error. */
int fake_allocate(uint64_t address, uint64_t bytes);
void fake_free(uint64_t address);
/* A kernel that adds one to a granule, as the program launches it. It ends after so many microseconds; UINT32_MAX:
 * when fake_finish is called. */
struct fake_stream {
  uint32_t outstanding; /* atomic */
} __attribute__((aligned(64)));
void fake_launch(struct fake_stream *stream, uint64_t address, uint32_t us);
void fake_finish(struct fake_stream *stream);
uint64_t fake_word(uint64_t address); /* what the granule has, past all gates */

/* ---- the daemon's side ----------------------------------------------------------------- */

struct xsw_memory_device *fake_entry(struct test_daemon *daemon);
struct xsw_memory_order *fake_order(struct test_daemon *daemon);
void fake_budget(struct test_daemon *daemon, uint64_t bytes);
uint64_t fake_give(struct test_daemon *daemon, enum xsw_memory_want want, uint64_t bytes);
#define ENTRY(field) __atomic_load_n(&fake_entry(d)->field, __ATOMIC_ACQUIRE)
#define DONE(given)                                                                                \
  do {                                                                                             \
    uint64_t sequence_ = (given);                                                                  \
    EVENTUALLY(ENTRY(order) == sequence_);                                                         \
  } while (0)

#endif /* XSCHED_TEST_MOVE_FAKE_H */
