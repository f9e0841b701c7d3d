// SPDX-License-Identifier: Apache-2.0
//
// struct xsi_move_platform for CUDA. Only real driver functions are called here. Every call is in relaxed mode, in a
// context that is pushed for it.

#include "move.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/fork.h"
#include "core/lock.h"

bool xsi_cu_moves;

// ---- contexts ------------------------------------------------------------------------------------

enum { HOMES = 64, STEP_NS = 100000 };

// A context of the program's, and the mover's stream in it.
struct home {
  CUcontext context; // NULL: free
  CUdevice_v1 ordinal;
  CUstream stream;
  unsigned visits; // calls of ours in it
  bool goes;       // no further ones
};
static XSI_FORK_STATE struct xsi_lock lock;
static struct home homes[HOMES];

static void reset_in_child(void) {
  lock = (struct xsi_lock){0};
  for (int i = 0; i < HOMES; i++)
    if (homes[i].context) homes[i] = (struct home){0};
}

// Under the lock: the block's own context if it lives, else another one of the device.
static struct home *find_for_visit(uintptr_t context, int ordinal) {
  struct home *found = NULL;
  for (int i = 0; i < HOMES; i++) {
    if (!homes[i].context || homes[i].goes) continue;
    if ((uintptr_t)homes[i].context == context) return &homes[i];
    if (!found && homes[i].ordinal == ordinal) found = &homes[i];
  }
  return found;
}

static struct home *find(CUcontext context) {
  for (int i = 0; i < HOMES; i++)
    if (homes[i].context == context) return &homes[i];
  return NULL;
}

static void visit_ends(CUcontext context) {
  xsi_lock_take(&lock);
  struct home *home = find(context);
  if (home) home->visits--;
  xsi_lock_give(&lock);
}

static bool is_known(CUcontext context) {
  xsi_lock_take(&lock);
  struct home *home = find(context);
  xsi_lock_give(&lock);
  return home != NULL;
}

void xsi_cu_move_context(CUcontext context) {
  static int registered; // atomic
  CUcontext before;
  CUdevice_v1 ordinal = -1;
  if (!context || is_known(context)) return;
  if (!__atomic_exchange_n(&registered, 1, __ATOMIC_SEQ_CST)) xsi_at_fork_child(reset_in_child);
  if (xsi_cu_call_real(cuCtxPushCurrent_v2, context) != XSI_CU_SUCCESS) return;
  CUresult result = xsi_cu_call_real(cuCtxGetDevice, &ordinal);
  xsi_cu_call_real(cuCtxPopCurrent_v2, &before);
  if (result != XSI_CU_SUCCESS) return;
  xsi_lock_take(&lock);
  if (!find(context))
    for (int i = 0; i < HOMES; i++) {
      if (homes[i].context) continue;
      homes[i] = (struct home){.context = context, .ordinal = ordinal};
      break;
    }
  xsi_lock_give(&lock);
}

void xsi_cu_move_goes(CUcontext context, bool goes) {
  const struct timespec step = {.tv_nsec = STEP_NS};
  int saved = errno;
  for (bool visited = context != NULL; visited;) {
    xsi_lock_take(&lock);
    struct home *home = find(context);
    if (home) home->goes = goes;
    visited = goes && home && home->visits != 0;
    xsi_lock_give(&lock);
    if (visited) syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &step, NULL);
  }
  errno = saved;
}

int xsi_cu_move_forget(CUcontext context) {
  if (!context) return -1;
  xsi_lock_take(&lock);
  struct home *home = find(context);
  int ordinal = home ? home->ordinal : -1;
  if (home) *home = (struct home){0};
  xsi_lock_give(&lock);
  return ordinal;
}

// ---- one call ------------------------------------------------------------------------------------

struct visit {
  int mode;
  CUcontext context, before;
  CUstream stream;
};

static CUresult enter(struct visit *visit, const struct xsi_move_device *device, bool stream) {
  xsi_lock_take(&lock);
  struct home *found = find_for_visit(device->context, device->ordinal);
  if (found) found->visits++;
  struct home home = found ? *found : (struct home){0};
  xsi_lock_give(&lock);
  if (!home.context) return XSI_CU_INVALID_CONTEXT;
  visit->context = home.context;
  visit->mode = xsi_cu_relax();
  CUresult result = xsi_cu_call_real(cuCtxPushCurrent_v2, home.context);
  if (result == XSI_CU_SUCCESS && stream && !home.stream) {
    result = xsi_cu_call_real(cuStreamCreate, &home.stream, (unsigned)XSI_CU_STREAM_NON_BLOCKING);
    if (result != XSI_CU_SUCCESS) {
      xsi_cu_call_real(cuCtxPopCurrent_v2, &visit->before);
    } else {
      xsi_lock_take(&lock);
      found = find(home.context);
      if (found) found->stream = home.stream; // the mover is the only one that makes them
      xsi_lock_give(&lock);
    }
  }
  visit->stream = home.stream;
  if (result != XSI_CU_SUCCESS) {
    xsi_cu_unrelax(visit->mode);
    visit_ends(home.context);
  }
  return result;
}

static int leave(struct visit *visit, CUresult result) {
  xsi_cu_call_real(cuCtxPopCurrent_v2, &visit->before);
  xsi_cu_unrelax(visit->mode);
  visit_ends(visit->context);
  return result == XSI_CU_SUCCESS ? 0 : -EIO;
}

static int code(CUresult result) {
  if (result == XSI_CU_SUCCESS) return 0;
  return result == XSI_CU_OUT_OF_MEMORY ? -ENOMEM : -EIO;
}

// ---- memory: it belongs to no context ------------------------------------------------------------

static struct xsi_cu_memory *memory_of(uint64_t properties) {
  return (struct xsi_cu_memory *)(uintptr_t)properties;
}

static int create(const struct xsi_move_device *device, uint64_t bytes, uint64_t properties,
                  uint64_t *handle) {
  struct xsi_cu_memory *memory = memory_of(properties);
  CUmemGenericAllocationHandle_v1 made = 0;
  struct visit visit;
  // In the block's context: the virtual GPU's memory belongs to one.
  bool inside = enter(&visit, device, false) == XSI_CU_SUCCESS;
  CUresult result = xsi_cu_call_real(cuMemCreate, &made, bytes, &memory->properties, 0ull);
  if (inside) leave(&visit, result);
  if (result == XSI_CU_SUCCESS) *handle = memory->driver = made;
  return code(result);
}

static void release(uint64_t handle) {
  int mode = xsi_cu_relax();
  xsi_cu_call_real(cuMemRelease, handle);
  xsi_cu_unrelax(mode);
}

CUresult xsi_cu_allow(CUdeviceptr_v2 address, uint64_t bytes, int flags, uint64_t ordinals) {
  CUmemAccessDesc_v1 list[XSI_CU_ORDINALS];
  size_t count = 0;
  for (int i = 0; i < XSI_CU_ORDINALS; i++)
    if (ordinals >> i & 1) list[count++] = (CUmemAccessDesc_v1){{XSI_CU_LOCATION_DEVICE, i}, flags};
  if (count == 0) return XSI_CU_SUCCESS;
  return xsi_cu_call_real(cuMemSetAccess, address, bytes, list, count);
}

static int map(const struct xsi_move_device *device, uint64_t address, uint64_t bytes,
               uint64_t properties, uint64_t handle) {
  const struct xsi_cu_memory *memory = memory_of(properties);
  uint64_t writers = memory->buffer_id ? xsi_cu_peers_of(device->ordinal) : memory->writers;
  uint64_t readers = memory->buffer_id ? 0 : memory->readers;
  int mode = xsi_cu_relax();
  CUresult result = xsi_cu_call_real(cuMemMap, address, bytes, (size_t)0, handle, 0ull);
  if (result == XSI_CU_SUCCESS) {
    result = xsi_cu_allow(address, bytes, XSI_CU_ACCESS_BOTH, writers);
    if (result == XSI_CU_SUCCESS)
      result = xsi_cu_allow(address, bytes, XSI_CU_ACCESS_READ, readers);
    if (result != XSI_CU_SUCCESS) xsi_cu_call_real(cuMemUnmap, address, bytes);
  }
  xsi_cu_unrelax(mode);
  return code(result);
}

static int unmap(uint64_t address, uint64_t bytes) {
  int mode = xsi_cu_relax();
  CUresult result = xsi_cu_call_real(cuMemUnmap, address, bytes);
  xsi_cu_unrelax(mode);
  return code(result);
}

// ---- host memory and copies ----------------------------------------------------------------------

static int pin(const struct xsi_move_device *device, void *host, size_t bytes) {
  struct visit visit;
  CUresult result = enter(&visit, device, false);
  if (result != XSI_CU_SUCCESS) return -ENODEV;
  result = xsi_cu_call_real(cuMemHostRegister_v2, host, bytes, (unsigned)XSI_CU_HOST_PORTABLE);
  return leave(&visit, result) ? code(result) : 0;
}

static void unpin(const struct xsi_move_device *device, void *host) {
  struct visit visit;
  if (enter(&visit, device, false) != XSI_CU_SUCCESS) return; // went with its context
  leave(&visit, xsi_cu_call_real(cuMemHostUnregister, host));
}

static int copy(const struct xsi_move_device *device, void *host, uint64_t address, uint64_t bytes,
                bool out) {
  struct visit visit;
  CUresult result = enter(&visit, device, true);
  if (result != XSI_CU_SUCCESS) return -ENODEV;
  result = out ? xsi_cu_call_real(cuMemcpyDtoHAsync_v2, host, address, bytes, visit.stream)
               : xsi_cu_call_real(cuMemcpyHtoDAsync_v2, address, host, bytes, visit.stream);
  return leave(&visit, result);
}

// Copies of one device may be in the streams of several contexts.
static int each_home(int ordinal, CUresult (*what)(const struct home *home)) {
  CUresult first = XSI_CU_SUCCESS;
  for (int i = 0; i < HOMES; i++) {
    struct visit visit;
    xsi_lock_take(&lock);
    struct home home = homes[i];
    bool visits = home.context && home.ordinal == ordinal && !home.goes;
    if (visits) homes[i].visits++;
    xsi_lock_give(&lock);
    if (!visits) continue;
    visit.mode = xsi_cu_relax();
    CUresult result = xsi_cu_call_real(cuCtxPushCurrent_v2, home.context);
    if (result == XSI_CU_SUCCESS) {
      result = what(&home);
      xsi_cu_call_real(cuCtxPopCurrent_v2, &visit.before);
    }
    xsi_cu_unrelax(visit.mode);
    visit_ends(home.context);
    if (first == XSI_CU_SUCCESS) first = result;
  }
  return first == XSI_CU_SUCCESS ? 0 : -EIO;
}

static CUresult finish_home(const struct home *home) {
  return home->stream ? xsi_cu_call_real(cuStreamSynchronize, home->stream) : XSI_CU_SUCCESS;
}
static int finish(const struct xsi_move_device *device) {
  return each_home(device->ordinal, finish_home);
}

static CUresult settle_home(const struct home *home) {
  (void)home;
  return xsi_cu_call_real(cuCtxSynchronize);
}
static int settle(const struct xsi_move_device *device) {
  return each_home(device->ordinal, settle_home);
}

static int room(const struct xsi_move_device *device, uint64_t *bytes) {
  struct visit visit;
  size_t there = 0, total = 0;
  if (enter(&visit, device, false) != XSI_CU_SUCCESS) return -ENODEV;
  int result = leave(&visit, xsi_cu_call_real(cuMemGetInfo_v2, &there, &total));
  *bytes = there;
  return result;
}

const struct xsi_move_platform xsi_cu_move_platform = {
    .create = create,
    .release = release,
    .map = map,
    .unmap = unmap,
    .pin = pin,
    .unpin = unpin,
    .copy = copy,
    .finish = finish,
    .settle = settle,
    .room = room,
};

// ---- peers ---------------------------------------------------------------------------------------

// How many contexts of one device may use the memory of another: [owner][user].
static uint8_t peers[XSI_CU_ORDINALS][XSI_CU_ORDINALS]; // atomic

uint64_t xsi_cu_peers_of(int ordinal) {
  uint64_t found = 1ull << ordinal;
  for (int i = 0; i < XSI_CU_ORDINALS; i++)
    if (__atomic_load_n(&peers[ordinal][i], __ATOMIC_RELAXED)) found |= 1ull << i;
  return found;
}

static bool is_ordinal(CUdevice_v1 ordinal) { return ordinal >= 0 && ordinal < XSI_CU_ORDINALS; }

static bool device_of(CUcontext context, CUdevice_v1 *ordinal) {
  CUcontext before;
  if (xsi_cu_call_real(cuCtxPushCurrent_v2, context) != XSI_CU_SUCCESS) return false;
  CUresult result = xsi_cu_call_real(cuCtxGetDevice, ordinal);
  xsi_cu_call_real(cuCtxPopCurrent_v2, &before);
  return result == XSI_CU_SUCCESS && is_ordinal(*ordinal);
}

struct grant {
  uint64_t user;
  int owner, flags;
};

static bool grant(const struct xsi_block_view *view, void *data) {
  const struct grant *to = data;
  if (view->device.ordinal == to->owner && memory_of(view->properties)->buffer_id)
    xsi_cu_allow(view->address, view->bytes, to->flags, to->user);
  return true;
}

// Inside enter: the owner's blocks are all mapped.
static void change_peer(CUcontext peer, bool may) {
  CUdevice_v1 owner = -1, user = -1;
  struct xsi_memory_place place;
  if (xsi_cu_call_real(cuCtxGetDevice, &user) != XSI_CU_SUCCESS || !is_ordinal(user) ||
      !device_of(peer, &owner) || owner == user)
    return;
  uint8_t *count = &peers[owner][user];
  uint8_t before = may ? __atomic_fetch_add(count, 1, __ATOMIC_RELAXED)
                       : __atomic_fetch_sub(count, 1, __ATOMIC_RELAXED);
  struct grant to = {1ull << user, owner, may ? XSI_CU_ACCESS_BOTH : 0};
  if (before == (may ? 0 : 1) && xsi_cu_place_of(owner, &place)) xsi_block_each(place, grant, &to);
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  XSI_CU_REAL(cuCtxEnablePeerAccess);
  if (!xsi_cu_enter()) return real(peer, flags);
  xsi_work_never_batch();
  xsi_move_enter();
  CUresult result = real(peer, flags);
  if (result == XSI_CU_SUCCESS) change_peer(peer, true);
  xsi_move_leave();
  return result;
}
XSI_HOOK(cuCtxEnablePeerAccess)

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  XSI_CU_REAL(cuCtxDisablePeerAccess);
  if (!xsi_cu_enter()) return real(peer);
  xsi_move_enter();
  CUresult result = real(peer);
  if (result == XSI_CU_SUCCESS) change_peer(peer, false);
  xsi_move_leave();
  return result;
}
XSI_HOOK(cuCtxDisablePeerAccess)
