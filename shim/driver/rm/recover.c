// SPDX-License-Identifier: Apache-2.0
//
// Fail open at the driver: every channel of this process enabled, every group with the timeslice it
// had before a daemon came. On our own duplicate of the application's file, with its own handles
// only.

#include <errno.h>
#include <string.h>

#include "core/log.h"
#include "core/real.h"
#include "rm.h"

enum { LAST_TRIES = 3 }; // for the enable that follows a stop

struct group_item {
  uint32_t group, device;
  uint64_t timeslice_us;
};

// Copies of one client's handles; only the recovering thread uses them.
static uint32_t channels[XSW_MAX_RM_OBJECTS], devices[XSW_MAX_RM_OBJECTS];
static struct group_item groups[XSW_MAX_RM_OBJECTS];
static struct subdevice_item { uint32_t device, subdevice, gpu_id; } subdevices[XSW_MAX_RM_OBJECTS];
static unsigned channel_count, group_count, subdevice_count;

int xsi_rm_call(int fd, uint32_t client, uint32_t object, uint32_t command, void *params,
                uint32_t bytes) {
  struct rm_control call = {
      .client = client,
      .object = object,
      .command = command,
      .params = (uint64_t)(uintptr_t)params,
      .params_bytes = bytes,
  };
  if (xsi_real_ioctl(fd, NV_ESC_RM_CONTROL, &call) < 0) return -errno;
  return call.status == 0 ? 0 : (int)(call.status & INT32_MAX);
}

static uint32_t device_of(const struct rm_object *object) {
  const struct rm_object *device = xsi_rm_ancestor(object, NV01_DEVICE_0);
  return device == NULL ? 0 : device->handle;
}

static struct subdevice_item *find_subdevice(uint32_t device) {
  for (unsigned i = 0; i < subdevice_count; i++)
    if (subdevices[i].device == device) return &subdevices[i];
  return NULL;
}

static void copy_object(const struct rm_object *object) {
  if (object->object_class == NV20_SUBDEVICE_0) {
    struct subdevice_item *known = find_subdevice(object->parent); // one name for it is enough
    if (known == NULL)
      subdevices[subdevice_count++] =
          (struct subdevice_item){object->parent, object->handle, object->gpu_id};
    else if (known->gpu_id == 0)
      known->gpu_id = object->gpu_id;
  } else if (object->object_class == KEPLER_CHANNEL_GROUP_A && object->slice_known) {
    groups[group_count++] =
        (struct group_item){object->handle, device_of(object), object->timeslice_us};
  } else if (rm_is_channel(object->object_class)) {
    devices[channel_count] = device_of(object);
    channels[channel_count++] = object->handle;
  }
}

// Is it, or may it be, on the device of the lease?
static bool concerned(const struct subdevice_item *item, const struct xsi_lease *lease) {
  if (lease == NULL || item == NULL || item->gpu_id == 0) return true;
  uint32_t bus_slot = (item->gpu_id & 0xff00) | (item->gpu_id & 0xff) << 3;
  // The driver's number has 16 bits of the domain.
  return item->gpu_id >> 16 == (lease->pci_domain & 0xffff) && bus_slot == lease->pci_bus_slot;
}

static void copy_client(uint32_t client) {
  struct rm_object *object;
  channel_count = group_count = subdevice_count = 0;
  rm_for_each(object) {
    if (!object->gone && object->client == client) copy_object(object);
  }
}

static int set_disabled(int fd, uint32_t client, uint32_t subdevice, const uint32_t *handles,
                        uint32_t count, bool disable) {
  struct rm_disable_channels params = {.disable = disable, .count = count};
  for (uint32_t i = 0; i < count; i++) {
    params.clients[i] = client;
    params.channels[i] = handles[i];
  }
  return xsi_rm_call(fd, client, subdevice, NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, &params,
                     sizeof params);
}

// Enabling is possible no more, because the object is not there: nothing is left stopped.
static bool gone(int status) {
  return status == 0x23 || status == 0x31 || status == 0x33 || status == 0x39 || status == 0x57;
}

// Busy or timed out: the same call may work later.
static bool transient(int status) { return status == 0x03 || status == 0x65; }

static bool enable_chunk(int fd, uint32_t client, uint32_t subdevice, const uint32_t *handles,
                         uint32_t count) {
  int status = set_disabled(fd, client, subdevice, handles, count, false);
  if (status == 0) return true;
  xsi_log(XSI_WARN, "cannot enable channels client=%#x count=%u status=%#x", client, count, status);
  if (count == 1) return gone(status);
  // One that the application has just freed makes the driver refuse all: the others one by one.
  bool all = true;
  for (uint32_t i = 0; i < count; i++) {
    status = set_disabled(fd, client, subdevice, &handles[i], 1, false);
    if (status != 0 && !gone(status)) all = false;
  }
  return all;
}

// Whatever a daemon has done to them. Measured on an H200 (docs/platforms/nvidia.md): the driver counts
// disables, so a channel that a dying daemon stopped twice takes two enables, while enabling one that
// runs changes nothing; and one that left at the end of its slice with no other work on the chip comes
// back only after a full stop and another enable.
static bool free_chunk(int fd, uint32_t client, uint32_t subdevice, const uint32_t *handles,
                       uint32_t count) {
  bool done = enable_chunk(fd, client, subdevice, handles, count);
  if (!enable_chunk(fd, client, subdevice, handles, count)) return false;
  // Only where enabling has just worked: the stop must not be the last thing that does.
  set_disabled(fd, client, subdevice, handles, count, true);
  for (int i = 0; i < LAST_TRIES; i++)
    if (enable_chunk(fd, client, subdevice, handles, count)) return done;
  return false;
}

static bool recover_client(int fd, uint32_t client, const struct xsi_lease *lease) {
  bool done = true;
  for (unsigned s = 0; s < subdevice_count; s++) {
    if (!concerned(&subdevices[s], lease)) continue;
    uint32_t chunk[RM_DISABLE_MAX_CHANNELS], count = 0;
    for (unsigned i = 0; i < channel_count; i++) {
      // A channel whose device we missed can only belong to the client's one and only.
      if (devices[i] != subdevices[s].device && !(devices[i] == 0 && subdevice_count == 1))
        continue;
      chunk[count++] = channels[i];
      if (count < RM_DISABLE_MAX_CHANNELS) continue;
      done = free_chunk(fd, client, subdevices[s].subdevice, chunk, count) && done;
      count = 0;
    }
    if (count > 0) done = free_chunk(fd, client, subdevices[s].subdevice, chunk, count) && done;
  }
  for (unsigned i = 0; i < group_count; i++) {
    if (!concerned(find_subdevice(groups[i].device), lease)) continue;
    struct rm_timeslice slice = {groups[i].timeslice_us};
    int status = xsi_rm_call(fd, client, groups[i].group, NVA06C_CTRL_CMD_SET_TIMESLICE, &slice,
                             sizeof slice);
    if (status < 0 || transient(status)) done = false;
    if (status != 0)
      xsi_log(XSI_WARN, "cannot restore timeslice client=%#x group=%#x status=%#x", client,
              groups[i].group, status);
  }
  return done;
}

int xsi_rm_recover(const struct xsi_lease *lease) {
  int saved = errno;
  bool done = true;
  // Never waits: a recovery under way does the same work.
  if (__atomic_exchange_n(&xsi_rm_table.recovering, 1, __ATOMIC_ACQ_REL) != 0) return -EAGAIN;
  for (unsigned i = 0; i < XSW_MAX_RM_CLIENTS; i++) {
    struct rm_client *client = &xsi_rm_table.clients[i];
    xsi_rm_lock();
    bool due = client->handle != 0 && !client->gone && client->shared && client->fd >= 0;
    uint32_t handle = client->handle;
    int fd = client->fd;
    if (due) {
      copy_client(handle);
      client->users++;
    }
    xsi_rm_unlock();
    if (!due) continue;
    done = recover_client(fd, handle, lease) && done; // the driver may take its time: no lock held
    xsi_rm_lock();
    xsi_rm_release_client(client);
    xsi_rm_unlock();
  }
  __atomic_store_n(&xsi_rm_table.recovering, 0, __ATOMIC_RELEASE);
  errno = saved;
  return done ? 0 : -EAGAIN;
}
