// SPDX-License-Identifier: Apache-2.0

#include "api.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/fork.h"

// A handle is the generation of an object's place above the place's number plus one.
enum { MOST = 1 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct xsi_api_object *objects;
static uint32_t count, room;
static uint32_t *free_places;
static uint32_t free_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void take(void) { pthread_mutex_lock(&lock); }
static void release(void) { pthread_mutex_unlock(&lock); }

// A child of a fork has none of its parent's streams. The memory stays: it is used again.
static void reset(void) {
  for (uint32_t i = 0; i < count; i++)
    objects[i].kind = XSI_API_FREE;
  for (uint32_t i = 0; i < count; i++)
    free_places[i] = i;
  free_count = count;
}

static void start(void) {
  xsi_at_fork_locks(take, release);
  xsi_at_fork_child(reset);
}

static bool grow(void) {
  uint32_t more = room == 0 ? 64 : 2 * room;
  if (more > MOST) return false;
  struct xsi_api_object *larger = realloc(objects, more * sizeof *larger);
  if (larger == NULL) return false;
  objects = larger;
  uint32_t *places = realloc(free_places, more * sizeof *places);
  if (places == NULL) return false;
  free_places = places;
  room = more;
  return true;
}

// With the lock held.
static struct xsi_api_object *find(uint64_t handle, enum xsi_api_kind kind) {
  uint32_t place = (uint32_t)handle - 1;
  if (handle == 0 || place >= count) return NULL;
  struct xsi_api_object *object = &objects[place];
  return object->kind == kind && object->generation == handle >> 32 ? object : NULL;
}

static uint64_t handle_of(uint32_t place) {
  return (uint64_t)objects[place].generation << 32 | (place + 1);
}

uint64_t xsi_api_add(const struct xsi_api_object *object) {
  int saved = errno;
  uint64_t handle = 0;
  pthread_once(&once, start);
  take();
  if (free_count > 0 || count < room || grow()) {
    uint32_t place, generation = 0;
    if (free_count > 0) {
      place = free_places[--free_count];
      generation = objects[place].generation;
    } else {
      place = count++;
    }
    objects[place] = *object;
    objects[place].generation = (generation + 1) & 0x7fffffff;
    handle = handle_of(place);
  }
  release();
  errno = saved;
  return handle;
}

bool xsi_api_get(uint64_t handle, enum xsi_api_kind kind, struct xsi_api_object *object) {
  take();
  const struct xsi_api_object *found = find(handle, kind);
  if (found != NULL) *object = *found;
  release();
  return found != NULL;
}

bool xsi_api_edit(uint64_t handle, enum xsi_api_kind kind,
                  void (*change)(struct xsi_api_object *object, void *argument), void *argument) {
  take();
  struct xsi_api_object *found = find(handle, kind);
  if (found != NULL) change(found, argument);
  release();
  return found != NULL;
}

bool xsi_api_remove(uint64_t handle, enum xsi_api_kind kind, struct xsi_api_object *object) {
  take();
  struct xsi_api_object *found = find(handle, kind);
  if (found != NULL) {
    *object = *found;
    found->kind = XSI_API_FREE;
    free_places[free_count++] = (uint32_t)(found - objects);
  }
  release();
  return found != NULL;
}

// ---- hardware queues of a runtime ---------------------------------------------------------------

static uint64_t find_hardware(const struct xsi_api_stream *stream) {
  uint64_t handle = 0;
  take();
  for (uint32_t i = 0; i < count && handle == 0; i++)
    if (objects[i].kind == XSI_API_HARDWARE && objects[i].hardware.stream == stream->stream &&
        objects[i].hardware.context == stream->context &&
        objects[i].hardware.platform == stream->platform)
      handle = handle_of(i);
  release();
  return handle;
}

XResult xsi_api_hardware_create(HwQueueHandle *hwq, struct xsi_api_stream stream) {
  struct xsi_api_object hardware = {.kind = XSI_API_HARDWARE};
  hardware.hardware.platform = stream.platform;
  hardware.hardware.context = stream.context;
  hardware.hardware.stream = stream.stream;
  if (hwq == NULL || !stream.found) return kXSchedErrorInvalidValue;
  if (find_hardware(&stream) != 0) return kXSchedErrorNotAllowed;
  uint64_t handle = xsi_api_add(&hardware);
  if (handle == 0) return kXSchedErrorUnknown;
  *hwq = handle;
  return kXSchedSuccess;
}

XResult xsi_api_hardware_get(HwQueueHandle *hwq, struct xsi_api_stream stream) {
  if (hwq == NULL) return kXSchedErrorInvalidValue;
  uint64_t handle = stream.found ? find_hardware(&stream) : 0;
  if (handle == 0) return kXSchedErrorNotFound;
  *hwq = handle;
  return kXSchedSuccess;
}
