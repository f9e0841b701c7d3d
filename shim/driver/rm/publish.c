// SPDX-License-Identifier: Apache-2.0
//
// Tells the daemon about the table. Frames carry state, not history: an object that came and went in
// between is never mentioned, and a timeslice set twice is sent once.

#include <string.h>

#include "core/clock.h"
#include "core/frame.h"
#include "core/wake.h"
#include "rm.h"

enum { POSTPONE_MAX_NS = 10000000 };

static void set_due(uint64_t due) { __atomic_store_n(&xsi_rm_table.due_ns, due, __ATOMIC_RELEASE); }

uint64_t xsi_rm_due_ns(void) { return __atomic_load_n(&xsi_rm_table.due_ns, __ATOMIC_ACQUIRE); }

bool xsi_rm_overflowed(void) { return __atomic_load_n(&xsi_rm_table.overflowed, __ATOMIC_ACQUIRE); }

void xsi_rm_changed(uint64_t delay) {
  if (!xsi_rm_table.listening) return;
  uint64_t now = xsi_now_ns(), due = xsi_rm_due_ns();
  if (due == UINT64_MAX) xsi_rm_table.change_ns = now;
  if (now + delay >= due) return;
  set_due(now + delay);
  xsi_wake_helper();
}

void xsi_rm_postpone(uint64_t delay) {
  uint64_t due = xsi_rm_due_ns();
  if (due == UINT64_MAX) return;
  uint64_t later = xsi_now_ns() + delay, latest = xsi_rm_table.change_ns + POSTPONE_MAX_NS;
  if (later > latest) later = latest;
  if (later > due) set_due(later); // the helper wakes at the earlier time and looks again
}

void xsi_rm_tell(bool listening) {
  struct rm_object *object;
  xsi_rm_lock();
  xsi_rm_forget_gone();
  for (unsigned i = 0; i < XSW_MAX_RM_CLIENTS; i++)
    xsi_rm_table.clients[i].told = false;
  rm_for_each(object) {
    object->told = false;
    object->slice_told = !object->slice_own;
  }
  xsi_rm_table.listening = listening;
  __atomic_store_n(&xsi_rm_table.overflowed, false, __ATOMIC_RELEASE);
  set_due(listening ? 0 : UINT64_MAX);
  xsi_rm_unlock();
}

// ---- what only the driver knows ----------------------------------------------

static struct rm_object *first_unasked(void) {
  struct rm_object *object;
  rm_for_each(object) {
    if (object->gone) continue;
    if (object->object_class == KEPLER_CHANNEL_GROUP_A && !object->slice_asked) return object;
    if (object->object_class == NV20_SUBDEVICE_0 && !object->gpu_asked) return object;
  }
  return NULL;
}

// Until the daemon knows a group, only the application has set its timeslice: this one is restored.
// The GPU of a subdevice tells which lease its channels depend on.
void xsi_rm_learn(void) {
  struct rm_object *object;
  xsi_rm_lock();
  while ((object = first_unasked()) != NULL) {
    struct rm_client *client = xsi_rm_find_client(object->client);
    bool group = object->object_class == KEPLER_CHANNEL_GROUP_A;
    *(group ? &object->slice_asked : &object->gpu_asked) = true;
    if (client == NULL || client->fd < 0) continue;
    uint32_t client_handle = object->client, handle = object->handle;
    uint64_t serial = object->serial;
    int fd = client->fd;
    client->users++;
    xsi_rm_unlock();
    struct rm_timeslice slice = {0};
    uint32_t gpu_id = 0;
    int status = group ? xsi_rm_call(fd, client_handle, handle, NVA06C_CTRL_CMD_GET_TIMESLICE,
                                     &slice, sizeof slice)
                       : xsi_rm_call(fd, client_handle, handle, NV2080_CTRL_CMD_GPU_GET_ID, &gpu_id,
                                     sizeof gpu_id);
    xsi_rm_lock();
    xsi_rm_release_client(client);
    object = xsi_rm_find_object(client_handle, handle);
    if (status != 0 || object == NULL || object->serial != serial) continue;
    if (!group) {
      object->gpu_id = gpu_id;
    } else if (!object->slice_known) {
      object->slice_known = true;
      object->timeslice_us = slice.microseconds;
    }
  }
  xsi_rm_unlock();
}

// ---- frames ---------------------------------------------------------------------

static void add_event(struct xsw_rm *frame, uint32_t kind, const struct rm_object *object) {
  frame->events[frame->count++] = (struct xsw_rm_event){
      .kind = kind,
      .client = object->client,
      .parent = object->parent,
      .object = object->handle,
      .object_class = object->object_class,
      .value = kind == XSW_RM_TIMESLICE ? object->timeslice_us : 0,
  };
}

// Freed objects first: a handle may already name a new object.
static void tell_gone(struct xsw_rm *frame) {
  struct rm_object *object;
  rm_for_each(object) {
    if (frame->count == XSW_MAX_RM_EVENTS) return;
    if (!object->gone) continue;
    add_event(frame, XSW_RM_FREE, object);
    xsi_rm_forget_object(object);
  }
  for (unsigned i = 0; i < XSW_MAX_RM_CLIENTS && frame->count < XSW_MAX_RM_EVENTS; i++) {
    struct rm_client *client = &xsi_rm_table.clients[i];
    if (!client->gone) continue;
    frame->events[frame->count++] = (struct xsw_rm_event){
        .kind = XSW_RM_FREE, .client = client->handle, .object = client->handle};
    xsi_rm_forget_client(client);
  }
}

static bool tell_client(struct xsw_rm *frame, int *fd) {
  for (unsigned i = 0; i < XSW_MAX_RM_CLIENTS; i++) {
    struct rm_client *client = &xsi_rm_table.clients[i];
    if (client->handle == 0 || client->gone || client->told) continue;
    frame->events[frame->count++] = (struct xsw_rm_event){
        .kind = XSW_RM_CLIENT, .client = client->handle, .object = client->handle};
    client->told = client->shared = true;
    client->users++;
    *fd = client->fd;
    return true;
  }
  return false;
}

// False if it stopped at a group whose timeslice is not known yet.
static bool tell_objects(struct xsw_rm *frame) {
  struct rm_object *object;
  rm_for_each(object) {
    if (frame->count == XSW_MAX_RM_EVENTS) return true;
    if (object->object_class == KEPLER_CHANNEL_GROUP_A && !object->slice_asked) return false;
    if (!object->told) {
      add_event(frame, XSW_RM_ALLOC, object);
      object->told = true;
    }
    if (object->slice_told || frame->count == XSW_MAX_RM_EVENTS) continue;
    add_event(frame, XSW_RM_TIMESLICE, object);
    object->slice_told = true;
  }
  return true;
}

size_t xsi_rm_next_frame(void *room, int *fd) {
  struct xsw_rm *frame = room;
  bool complete = true;
  *fd = -1;
  memset(frame, 0, offsetof(struct xsw_rm, events));
  xsi_rm_lock();
  tell_gone(frame);
  if (frame->count == 0 && !tell_client(frame, fd)) complete = tell_objects(frame);
  if (frame->count == 0) set_due(complete ? UINT64_MAX : xsi_now_ns());
  xsi_rm_unlock();
  if (frame->count == 0) return 0;
  size_t bytes = offsetof(struct xsw_rm, events) + frame->count * sizeof *frame->events;
  frame->frame = xsi_frame_head(XSW_FRAME_RM, bytes);
  return bytes;
}
