// SPDX-License-Identifier: Apache-2.0
//
// The RM clients and objects of this process, as its successful ioctls built them. A freed
// object that a daemon knows stays as "gone" until the daemon was told.

#include <pthread.h>
#include <string.h>

#include "core/fd.h"
#include "core/teardown.h"
#include "rm.h"

enum { BUCKETS = 1024 };

static struct rm_object all_objects[XSW_MAX_RM_OBJECTS];
XSI_FORK_STATE struct rm_table xsi_rm_table = {
    .objects = all_objects, .oldest = RM_NONE, .newest = RM_NONE, .due_ns = UINT64_MAX};

static XSI_FORK_STATE pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
// Places are numbered from 1 here, so that zeroed memory is an empty table.
static XSI_FORK_STATE uint16_t buckets[BUCKETS];
static XSI_FORK_STATE uint16_t free_places;
static XSI_FORK_STATE uint16_t touched; // places [0 .. touched) were used at least once
static XSI_FORK_STATE uint32_t gone_objects;
static XSI_FORK_STATE uint32_t groups; // of channels, not gone; atomic
static uint64_t last_serial;

void xsi_rm_lock(void) { pthread_mutex_lock(&lock); }
void xsi_rm_unlock(void) { pthread_mutex_unlock(&lock); }

static uint16_t *bucket_of(uint32_t client, uint32_t handle) {
  return &buckets[((client * 31u + handle) * 2654435761u) >> 22];
}
_Static_assert(BUCKETS == 1 << (32 - 22), "the hash gives a bucket");

static uint16_t place_of(const struct rm_object *object) {
  return (uint16_t)(object - xsi_rm_table.objects);
}

struct rm_client *xsi_rm_find_client(uint32_t handle) {
  for (unsigned i = 0; handle != 0 && i < XSW_MAX_RM_CLIENTS; i++)
    if (xsi_rm_table.clients[i].handle == handle && !xsi_rm_table.clients[i].gone)
      return &xsi_rm_table.clients[i];
  return NULL;
}

struct rm_object *xsi_rm_find_object(uint32_t client, uint32_t handle) {
  for (uint16_t n = *bucket_of(client, handle); n != 0; n = xsi_rm_table.objects[n - 1].chain) {
    struct rm_object *object = &xsi_rm_table.objects[n - 1];
    if (object->client == client && object->handle == handle) return object;
  }
  return NULL;
}

struct rm_object *xsi_rm_ancestor(const struct rm_object *object, uint32_t object_class) {
  struct rm_object *above = xsi_rm_find_object(object->client, object->parent);
  // Bounded: handles come from the application, parents could form a ring.
  for (int depth = 0; above != NULL && depth < 8; depth++) {
    if (above->object_class == object_class) return above;
    above = xsi_rm_find_object(above->client, above->parent);
  }
  return NULL;
}

// ---- places ---------------------------------------------------------------------

static struct rm_object *take_place(void) {
  if (free_places != 0) {
    struct rm_object *object = &xsi_rm_table.objects[free_places - 1];
    free_places = object->chain;
    return object;
  }
  return touched < XSW_MAX_RM_OBJECTS ? &xsi_rm_table.objects[touched++] : NULL;
}

static void append(struct rm_object *object) {
  uint16_t place = place_of(object);
  object->newer = RM_NONE;
  object->older = xsi_rm_table.newest;
  if (object->older != RM_NONE)
    xsi_rm_table.objects[object->older].newer = place;
  else
    xsi_rm_table.oldest = place;
  xsi_rm_table.newest = place;
}

static void give_place_back(struct rm_object *object) {
  if (object->older != RM_NONE)
    xsi_rm_table.objects[object->older].newer = object->newer;
  else
    xsi_rm_table.oldest = object->newer;
  if (object->newer != RM_NONE)
    xsi_rm_table.objects[object->newer].older = object->older;
  else
    xsi_rm_table.newest = object->older;
  memset(object, 0, sizeof *object);
  object->chain = free_places;
  free_places = (uint16_t)(place_of(object) + 1);
}

static void unhash(struct rm_object *object) {
  uint16_t *link = bucket_of(object->client, object->handle);
  while (*link != place_of(object) + 1)
    link = &xsi_rm_table.objects[*link - 1].chain;
  *link = object->chain;
  object->chain = 0;
}

// ---- objects --------------------------------------------------------------------

uint64_t xsi_rm_newest_serial(void) { return last_serial; }

// The table is full of freed objects that the daemon still has to be told about: the session starts over,
// and they can be forgotten.
static bool make_room(void) {
  if (!xsi_rm_table.listening) return false;
  __atomic_store_n(&xsi_rm_table.overflowed, true, __ATOMIC_RELEASE);
  xsi_rm_forget_gone();
  return true;
}

int xsi_rm_add_object(uint32_t client, uint32_t parent, uint32_t handle, uint32_t object_class) {
  xsi_rm_remove_object(client, handle, UINT64_MAX); // one freed unseen
  struct rm_object *object = take_place();
  if (object == NULL && gone_objects > 0 && make_room()) object = take_place();
  if (object == NULL) return -1;
  memset(object, 0, sizeof *object);
  object->client = client;
  object->parent = parent;
  object->handle = handle;
  object->object_class = object_class;
  object->serial = ++last_serial;
  object->slice_told = true;
  if (object_class == KEPLER_CHANNEL_GROUP_A) __atomic_fetch_add(&groups, 1, __ATOMIC_RELAXED);
  struct rm_object *above = xsi_rm_find_object(client, parent);
  if (above != NULL) above->children++;
  append(object);
  uint16_t *bucket = bucket_of(client, handle);
  object->chain = *bucket;
  *bucket = (uint16_t)(place_of(object) + 1);
  return 0;
}

static void drop(struct rm_object *object, bool tell) {
  struct rm_object *parent = xsi_rm_find_object(object->client, object->parent);
  unhash(object);
  if (parent != NULL && parent != object) parent->children--;
  object->doomed = false;
  if (object->object_class == KEPLER_CHANNEL_GROUP_A)
    __atomic_fetch_sub(&groups, 1, __ATOMIC_RELAXED);
  if (tell && object->told && xsi_rm_table.listening) {
    object->gone = true;
    gone_objects++;
  } else {
    give_place_back(object);
  }
}

bool xsi_rm_remove_object(uint32_t client, uint32_t handle, uint64_t serial) {
  struct rm_object *top = xsi_rm_find_object(client, handle), *object;
  if (top == NULL || top->serial > serial) return false;
  if (top->children == 0) {
    drop(top, true);
    return true;
  }
  // In the order of allocation a parent comes before its children: one pass finds all below.
  uint16_t place = place_of(top);
  top->doomed = true;
  rm_for_each_from(object, place) {
    if (object->gone || object->client != client || object == top) continue;
    const struct rm_object *parent = xsi_rm_find_object(client, object->parent);
    object->doomed = parent != NULL && parent->doomed;
  }
  rm_for_each_from(object, place) {
    if (object->doomed) drop(object, object == top); // the daemon drops children with their parent
  }
  return true;
}

void xsi_rm_forget_object(struct rm_object *object) {
  gone_objects--;
  give_place_back(object);
}

void xsi_rm_forget_gone(void) {
  struct rm_object *object;
  rm_for_each(object) {
    if (object->gone) xsi_rm_forget_object(object);
  }
  for (unsigned i = 0; i < XSW_MAX_RM_CLIENTS; i++)
    if (xsi_rm_table.clients[i].gone) xsi_rm_forget_client(&xsi_rm_table.clients[i]);
}

// ---- clients --------------------------------------------------------------------

static void clear_client(struct rm_client *client) {
  xsi_fd_close(&client->fd);
  memset(client, 0, sizeof *client);
  client->fd = -1;
}

static struct rm_client *free_client(void) {
  for (unsigned i = 0; i < XSW_MAX_RM_CLIENTS; i++)
    if (xsi_rm_table.clients[i].handle == 0 && xsi_rm_table.clients[i].users == 0)
      return &xsi_rm_table.clients[i];
  return NULL;
}

static bool any_client_gone(void) {
  for (unsigned i = 0; i < XSW_MAX_RM_CLIENTS; i++)
    if (xsi_rm_table.clients[i].gone) return true;
  return false;
}

int xsi_rm_add_client(uint32_t handle, int fd) {
  xsi_rm_remove_client(handle, UINT64_MAX); // one freed unseen
  struct rm_client *client = free_client();
  if (client == NULL && any_client_gone() && make_room()) client = free_client();
  if (client == NULL) {
    xsi_fd_close(&fd);
    return -1;
  }
  *client = (struct rm_client){.handle = handle, .fd = fd, .serial = ++last_serial};
  return 0;
}

bool xsi_rm_any_group(void) { return __atomic_load_n(&groups, __ATOMIC_RELAXED) != 0; }

void xsi_rm_forget_client(struct rm_client *client) {
  client->gone = false;
  client->handle = 0;
  if (client->users == 0) clear_client(client);
}

bool xsi_rm_remove_client(uint32_t handle, uint64_t serial) {
  struct rm_client *client = xsi_rm_find_client(handle);
  if (client == NULL || client->serial > serial) return false;
  struct rm_object *object;
  rm_for_each(object) {
    if (object->client != handle) continue;
    if (object->gone)
      xsi_rm_forget_object(object); // goes with the client
    else
      drop(object, false);
  }
  client->gone = true;
  if (client->users == 0) xsi_fd_close(&client->fd); // at once: it keeps the file open
  if (!client->told || !xsi_rm_table.listening) xsi_rm_forget_client(client);
  return true;
}

void xsi_rm_release_client(struct rm_client *client) {
  if (--client->users != 0) return;
  if (client->handle == 0) {
    clear_client(client);
  } else if (client->gone) {
    xsi_fd_close(&client->fd);
  }
}

void xsi_rm_release(int fd) {
  xsi_rm_lock();
  for (unsigned i = 0; i < XSW_MAX_RM_CLIENTS; i++) {
    struct rm_client *client = &xsi_rm_table.clients[i];
    if (client->users == 0 || client->fd != fd) continue;
    xsi_rm_release_client(client);
    break;
  }
  xsi_rm_unlock();
}

void xsi_rm_reset(void) {
  xsi_teardown_reset();
  for (unsigned i = 0; i < XSW_MAX_RM_CLIENTS; i++) {
    struct rm_client *client = &xsi_rm_table.clients[i];
    if (client->handle == 0 && client->users == 0) continue;
    xsi_fd_close(&client->fd);
    memset(client, 0, sizeof *client);
  }
  // The objects stay as they are: taking a place clears it.
  if (touched != 0) memset(buckets, 0, sizeof buckets);
  free_places = touched = 0;
  gone_objects = groups = 0;
  xsi_rm_table.oldest = xsi_rm_table.newest = RM_NONE;
  xsi_rm_table.listening = xsi_rm_table.overflowed = false;
  xsi_rm_table.due_ns = UINT64_MAX;
  xsi_rm_table.recovering = 0;
}
