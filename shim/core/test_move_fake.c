// SPDX-License-Identifier: Apache-2.0

#include "test_move_fake.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>

enum { SPACE = 1024, COPIES = 4096 }; // granules; copies under way

struct memory {
  uint64_t granules;
  uint64_t words[];
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  struct memory *memory;
  uint64_t at;
} space[SPACE];
static struct {
  void *host;
  uint64_t address, bytes;
  bool out;
} copies[COPIES];
static unsigned copy_count;
static uint32_t calls[OPS];

struct fake_fault fake_faults[OPS];
uint64_t fake_room = 1024 * MIB, fake_missed, fake_pinned;

// ---- faults ------------------------------------------------------------------------------------------

void fake_fail(enum fake_op op, uint32_t after, uint32_t times, int error) {
  pthread_mutex_lock(&lock);
  fake_faults[op] = (struct fake_fault){.after = after, .times = times, .error = error};
  pthread_mutex_unlock(&lock);
}

void fake_slow(enum fake_op op, uint32_t ms) {
  pthread_mutex_lock(&lock);
  fake_faults[op].slow_ms = ms;
  pthread_mutex_unlock(&lock);
}

void fake_heal(void) {
  pthread_mutex_lock(&lock);
  memset(fake_faults, 0, sizeof fake_faults);
  pthread_mutex_unlock(&lock);
}

uint32_t fake_calls(enum fake_op op) { return __atomic_load_n(&calls[op], __ATOMIC_SEQ_CST); }

static int begins(enum fake_op op) {
  pthread_mutex_lock(&lock);
  struct fake_fault *fault = &fake_faults[op];
  __atomic_fetch_add(&calls[op], 1, __ATOMIC_SEQ_CST);
  int error = 0;
  uint32_t slow = fault->slow_ms;
  if (fault->after > 0) {
    fault->after--;
  } else if (fault->times > 0) {
    fault->times--;
    error = fault->error;
  }
  pthread_mutex_unlock(&lock);
  if (slow > 0) test_sleep_ms(slow);
  return error;
}

// ---- the device --------------------------------------------------------------------------------------

static uint64_t granule_of(uint64_t address) {
  CHECK(address >= BASE && (address - BASE) / GRANULE < SPACE);
  return (address - BASE) / GRANULE;
}

// Under the lock: the word of a granule; NULL: it is not mapped.
static uint64_t *word_at(uint64_t address) {
  uint64_t at = granule_of(address);
  return space[at].memory ? &space[at].memory->words[space[at].at] : NULL;
}

static int create(const struct xsi_move_device *device, uint64_t bytes, uint64_t properties,
                  uint64_t *handle) {
  CHECK(device->ordinal == fake_device.ordinal && properties == 7 && bytes % GRANULE == 0);
  int error = begins(CREATE);
  if (error != 0) return error;
  pthread_mutex_lock(&lock);
  struct memory *memory = NULL;
  if (__atomic_load_n(&fake_room, __ATOMIC_SEQ_CST) >= bytes) {
    __atomic_fetch_sub(&fake_room, bytes, __ATOMIC_SEQ_CST);
    memory = calloc(1, sizeof *memory + bytes / GRANULE * 8);
    memory->granules = bytes / GRANULE;
  }
  pthread_mutex_unlock(&lock);
  *handle = (uintptr_t)memory;
  return memory ? 0 : -ENOMEM;
}

static void release(uint64_t handle) {
  struct memory *memory = (void *)(uintptr_t)handle;
  pthread_mutex_lock(&lock);
  for (unsigned i = 0; i < SPACE; i++)
    CHECK(space[i].memory != memory);
  __atomic_fetch_add(&fake_room, memory->granules * GRANULE, __ATOMIC_SEQ_CST);
  free(memory);
  pthread_mutex_unlock(&lock);
}

static int map(const struct xsi_move_device *device, uint64_t address, uint64_t bytes,
               uint64_t properties, uint64_t handle) {
  struct memory *memory = (void *)(uintptr_t)handle;
  CHECK(device->ordinal == fake_device.ordinal && properties == 7);
  CHECK(memory->granules * GRANULE == bytes);
  int error = begins(MAP);
  if (error != 0) return error;
  pthread_mutex_lock(&lock);
  for (uint64_t i = 0; i < memory->granules; i++) {
    uint64_t at = granule_of(address) + i;
    CHECK(!space[at].memory);
    space[at].memory = memory;
    space[at].at = i;
  }
  pthread_mutex_unlock(&lock);
  return 0;
}

static int unmap(uint64_t address, uint64_t bytes) {
  int error = begins(UNMAP);
  if (error != 0) return error;
  pthread_mutex_lock(&lock);
  for (uint64_t i = 0; i < bytes / GRANULE; i++) {
    CHECK(space[granule_of(address) + i].memory);
    space[granule_of(address) + i].memory = NULL;
  }
  pthread_mutex_unlock(&lock);
  return 0;
}

uint64_t fake_mapped(void) {
  uint64_t bytes = 0;
  pthread_mutex_lock(&lock);
  for (unsigned i = 0; i < SPACE; i++)
    bytes += space[i].memory ? GRANULE : 0;
  pthread_mutex_unlock(&lock);
  return bytes;
}

static int pin(const struct xsi_move_device *device, void *host, size_t bytes) {
  CHECK(device->context == FAKE_CONTEXT && host && bytes == XSI_MOVE_CHUNK);
  int error = begins(PIN);
  if (error == 0) __atomic_fetch_add(&fake_pinned, bytes, __ATOMIC_SEQ_CST);
  return error;
}

static void unpin(const struct xsi_move_device *device, void *host) {
  (void)device, (void)host;
  __atomic_fetch_sub(&fake_pinned, XSI_MOVE_CHUNK, __ATOMIC_SEQ_CST);
}

// Copies happen when they are finished.
static int copy(const struct xsi_move_device *device, void *host, uint64_t address, uint64_t bytes,
                bool out) {
  CHECK(device->context == FAKE_CONTEXT && bytes % GRANULE == 0);
  int error = begins(COPY);
  if (error != 0) return error;
  pthread_mutex_lock(&lock);
  CHECK(copy_count < COPIES);
  copies[copy_count].host = host;
  copies[copy_count].address = address;
  copies[copy_count].bytes = bytes;
  copies[copy_count++].out = out;
  pthread_mutex_unlock(&lock);
  return 0;
}

static int finish(const struct xsi_move_device *device) {
  (void)device;
  int error = begins(FINISH);
  pthread_mutex_lock(&lock);
  for (unsigned i = 0; i < copy_count; i++)
    for (uint64_t at = 0; at < copies[i].bytes; at += GRANULE) {
      uint64_t *word = word_at(copies[i].address + at);
      char *host = (char *)copies[i].host + at;
      CHECK(word);
      if (error != 0) {
        memset(copies[i].out ? host : (char *)word, 0xee, 8); // torn
        continue;
      }
      memcpy(copies[i].out ? host : (char *)word, copies[i].out ? (char *)word : host, 8);
    }
  copy_count = 0;
  pthread_mutex_unlock(&lock);
  return error;
}

static int settle(const struct xsi_move_device *device) {
  (void)device;
  return begins(SETTLE);
}

static int room(const struct xsi_move_device *device, uint64_t *bytes) {
  (void)device;
  *bytes = __atomic_load_n(&fake_room, __ATOMIC_SEQ_CST);
  return 0;
}

const struct xsi_move_device fake_device = {
    .place = {0, 0x0100}, .context = FAKE_CONTEXT, .ordinal = 3};
const struct xsi_move_platform fake_moves = {.create = create,
                                             .release = release,
                                             .map = map,
                                             .unmap = unmap,
                                             .pin = pin,
                                             .unpin = unpin,
                                             .copy = copy,
                                             .finish = finish,
                                             .settle = settle,
                                             .room = room};

// ---- the program -------------------------------------------------------------------------------------

int fake_allocate(uint64_t address, uint64_t bytes) {
  xsi_move_enter();
  int result = xsi_block_make(&fake_moves, &fake_device, address, bytes, bytes, 7, FAKE_CONTEXT);
  xsi_move_leave();
  return result;
}

void fake_free(uint64_t address) {
  struct xsi_block_view view;
  xsi_move_enter_to_free();
  CHECK(xsi_block_end(address, &view) && view.address == address);
  xsi_move_leave();
}

static uintptr_t context_of(uintptr_t stream) {
  (void)stream;
  return FAKE_CONTEXT;
}
static int describe(uintptr_t context, struct xsi_work_device *device) {
  CHECK(context == FAKE_CONTEXT);
  *device = (struct xsi_work_device){0, 0x0100};
  return 0;
}
static enum xsi_work_answer query(uintptr_t context, uintptr_t stream) {
  CHECK(context == FAKE_CONTEXT);
  struct fake_stream *asked = (void *)stream;
  return __atomic_load_n(&asked->outstanding, __ATOMIC_SEQ_CST) == 0 ? XSI_WORK_DONE
                                                                     : XSI_WORK_PENDING;
}
static enum xsi_work_answer event_query(uintptr_t context, uintptr_t event) {
  (void)context, (void)event;
  return XSI_WORK_DONE;
}
static int event_record(uintptr_t context, uintptr_t *event, uintptr_t stream) {
  (void)context, (void)event, (void)stream;
  return -EIO;
}
static int synchronize(uintptr_t context, uintptr_t stream) {
  (void)context, (void)stream;
  return 0;
}
static bool capturing(uintptr_t stream) {
  (void)stream;
  return false;
}
static int32_t priority_of(uintptr_t stream) {
  (void)stream;
  return 0;
}
static void watcher_starts(void) {}

const struct xsi_work_platform fake_work = {.context_of = context_of,
                                            .describe = describe,
                                            .query = query,
                                            .event_query = event_query,
                                            .poll = query,
                                            .event_record = event_record,
                                            .event_poll = event_query,
                                            .synchronize = synchronize,
                                            .capturing = capturing,
                                            .priority_of = priority_of,
                                            .watcher_starts = watcher_starts};

static void spin_us(uint32_t us) {
  for (uint64_t until = xsi_now_ns() + us * 1000ull; xsi_now_ns() < until;)
    continue;
}

// In the driver: the kernel runs in the middle of the call, or later.
void fake_launch(struct fake_stream *stream, uint64_t address, uint32_t us) {
  struct xsi_work_stream *work = xsi_work_find(&fake_work, 0, (uintptr_t)stream);
  CHECK(work);
  xsi_work_submit(work, XSI_WORK_OTHER);
  __atomic_fetch_add(&stream->outstanding, 1, __ATOMIC_SEQ_CST);
  if (us != UINT32_MAX) spin_us(us);
  pthread_mutex_lock(&lock);
  uint64_t *word = word_at(address);
  if (word)
    ++*word;
  else
    __atomic_fetch_add(&fake_missed, 1, __ATOMIC_SEQ_CST);
  pthread_mutex_unlock(&lock);
  xsi_work_landed(work);
  if (us != UINT32_MAX) fake_finish(stream);
}

void fake_finish(struct fake_stream *stream) {
  __atomic_fetch_sub(&stream->outstanding, 1, __ATOMIC_SEQ_CST);
}

uint64_t fake_word(uint64_t address) {
  pthread_mutex_lock(&lock);
  uint64_t *word = word_at(address), value = word ? *word : UINT64_MAX;
  pthread_mutex_unlock(&lock);
  return value;
}

// ---- the daemon's side -------------------------------------------------------------------------------

static struct xsw_memory *memory_of(struct test_daemon *daemon) {
  return (struct xsw_memory *)(void *)(daemon->page + XSW_MEMORY_OFFSET);
}
struct xsw_memory_device *fake_entry(struct test_daemon *daemon) {
  return &memory_of(daemon)->devices[0];
}
struct xsw_memory_order *fake_order(struct test_daemon *daemon) {
  return &memory_of(daemon)->orders[0];
}

static void wake(struct test_daemon *daemon) {
  uint32_t *orders = &test_header(daemon)->memory_orders;
  __atomic_fetch_add(orders, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, orders, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void fake_budget(struct test_daemon *daemon, uint64_t bytes) {
  __atomic_store_n(&fake_order(daemon)->host_bytes, bytes, __ATOMIC_RELEASE);
  wake(daemon);
}

uint64_t fake_give(struct test_daemon *daemon, enum xsw_memory_want want, uint64_t bytes) {
  struct xsw_memory_order *order = fake_order(daemon);
  uint64_t sequence = xsi_now_ns();
  __atomic_store_n(&order->want, want, __ATOMIC_RELAXED);
  __atomic_store_n(&order->bytes, bytes, __ATOMIC_RELAXED);
  __atomic_store_n(&order->sequence, sequence, __ATOMIC_RELEASE);
  wake(daemon);
  return sequence;
}
