/* SPDX-License-Identifier: Apache-2.0
 *
 * NVIDIA's resource manager as seen at ioctl: the few structures we read, at the driver's own
 * offsets, and the table of what this process holds.
 */
#ifndef XSCHED_RM_H
#define XSCHED_RM_H

#include "core/base.h"
#include "frames.h"

/* From nv_escape.h and nv-ioctl-numbers.h: _IOWR('F', number, size). */
#define NV_ESC_RM_FREE 0xC0104629u
#define NV_ESC_RM_CONTROL 0xC020462Au
#define NV_ESC_RM_ALLOC_32 0xC020462Bu /* NVOS21 */
#define NV_ESC_RM_ALLOC_48 0xC030462Bu /* NVOS64 */

struct rm_alloc { /* the part both forms share */
  uint32_t root, parent, object, object_class;
  uint64_t params;
};
struct rm_alloc_32 {
  struct rm_alloc common;
  uint32_t params_bytes, status;
};
struct rm_alloc_48 {
  struct rm_alloc common;
  uint64_t rights;
  uint32_t params_bytes, flags, status, _rsv;
};
struct rm_free {
  uint32_t root, parent, object, status;
};
struct rm_control {
  uint32_t client, object, command, flags;
  uint64_t params;
  uint32_t params_bytes, status;
};

_Static_assert(offsetof(struct rm_alloc, object) == 8 &&
                   offsetof(struct rm_alloc, object_class) == 12 &&
                   offsetof(struct rm_alloc, params) == 16,
               "NVOS21 and NVOS64 begin alike");
_Static_assert(sizeof(struct rm_alloc_32) == 32 && offsetof(struct rm_alloc_32, status) == 28,
               "NVOS21");
_Static_assert(sizeof(struct rm_alloc_48) == 48 && offsetof(struct rm_alloc_48, rights) == 24 &&
                   offsetof(struct rm_alloc_48, params_bytes) == 32 &&
                   offsetof(struct rm_alloc_48, status) == 40,
               "NVOS64");
_Static_assert(sizeof(struct rm_free) == 16 && offsetof(struct rm_free, object) == 8 &&
                   offsetof(struct rm_free, status) == 12,
               "NVOS00");
_Static_assert(sizeof(struct rm_control) == 32 && offsetof(struct rm_control, command) == 8 &&
                   offsetof(struct rm_control, params) == 16 &&
                   offsetof(struct rm_control, params_bytes) == 24 &&
                   offsetof(struct rm_control, status) == 28,
               "NVOS54");

/* From ctrla06c.h: channel groups. */
#define NVA06C_CTRL_CMD_GPFIFO_SCHEDULE 0xA06C0101u
#define NVA06C_CTRL_CMD_SET_TIMESLICE 0xA06C0103u
#define NVA06C_CTRL_CMD_GET_TIMESLICE 0xA06C0104u
struct rm_timeslice {
  uint64_t microseconds;
};
_Static_assert(sizeof(struct rm_timeslice) == 8, "timeslice parameters");

/* From ctrl2080fifo.h. */
#define NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS 0x2080110Bu
#define RM_DISABLE_MAX_CHANNELS 64
struct rm_disable_channels {
  uint8_t disable, _rsv0[3];
  uint32_t count;
  uint8_t only_scheduling, rewind, _rsv1[6];
  uint64_t event;
  uint32_t clients[RM_DISABLE_MAX_CHANNELS];
  uint32_t channels[RM_DISABLE_MAX_CHANNELS];
};
_Static_assert(sizeof(struct rm_disable_channels) == 536 &&
                   offsetof(struct rm_disable_channels, count) == 4 &&
                   offsetof(struct rm_disable_channels, only_scheduling) == 8 &&
                   offsetof(struct rm_disable_channels, event) == 16 &&
                   offsetof(struct rm_disable_channels, clients) == 24 &&
                   offsetof(struct rm_disable_channels, channels) == 280,
               "FIFO_DISABLE_CHANNELS parameters");

/* ---- classes -------------------------------------------------------------------- */

#define NV01_DEVICE_0 0x80u
#define NV20_SUBDEVICE_0 0x2080u
#define KEPLER_CHANNEL_GROUP_A 0xA06Cu

static inline bool rm_is_root(uint32_t class) { return class == 0 || class == 1 || class == 0x41; }
/* Each chip has classes of its own; what they are is in the low byte. */
static inline bool rm_is_channel(uint32_t class) {
  return class <= 0xFFFF && (class & 0xFF) == 0x6F;
}
static inline bool rm_is_tracked(uint32_t class) {
  return class == NV01_DEVICE_0 || class == NV20_SUBDEVICE_0 || class == KEPLER_CHANNEL_GROUP_A ||
         rm_is_channel(class) ||
         (class <= 0xFFFF && ((class & 0xFF) == 0xC0 || (class & 0xFF) == 0xB5));
}

/* ---- table.c: all but the lock and reset with the rm lock held --------------------- */

void xsi_rm_lock(void);
void xsi_rm_unlock(void);
void xsi_rm_reset(void); /* in the child of a fork */

struct rm_client {
  uint32_t handle; /* 0: free as soon as users is 0 */
  int fd;          /* our duplicate: the client belongs to the file */
  uint32_t users;  /* calls under way on fd */
  bool told;       /* this session's daemon has it */
  bool shared;     /* some daemon had it: there may be something to undo */
  bool gone;       /* freed, the daemon is still to be told (handle says of which) */
  uint64_t serial; /* tells a handle from its next use */
};

#define RM_NONE UINT16_MAX
struct rm_object {
  uint32_t client, parent, handle, object_class;
  uint64_t serial; /* tells a handle from its next use; 0: the place is free */
  uint64_t timeslice_us;
  uint16_t newer, older; /* in the order of allocation: a parent before its children */
  uint16_t chain;        /* of one hash value, or of free places */
  uint16_t children;
  bool told, gone, doomed;
  bool slice_known; /* timeslice_us is the application's (or the driver's default) */
  bool slice_asked; /* no need to ask the driver (again) */
  bool slice_own;   /* the application set it */
  bool slice_told;
};

struct rm_table {
  struct rm_client clients[XSW_MAX_RM_CLIENTS];
  struct rm_object objects[XSW_MAX_RM_OBJECTS];
  uint16_t oldest, newest;
  bool listening;  /* a session is there to be told */
  bool overflowed; /* too much to tell: it has to start over */
  uint64_t due_ns, change_ns;
  uint32_t recovering; /* atomic; not a lock, so that a fork need not wait for the driver */
};
extern struct rm_table xsi_rm_table;

struct rm_client *xsi_rm_find_client(uint32_t handle);
struct rm_object *xsi_rm_find_object(uint32_t client, uint32_t handle);
/* 0, or -1 when there is no room. The first takes fd over. */
int xsi_rm_add_client(uint32_t handle, int fd);
int xsi_rm_add_object(uint32_t client, uint32_t parent, uint32_t handle, uint32_t object_class);
/* The newest serial; later objects have larger ones. */
uint64_t xsi_rm_newest_serial(void);
/* With all below it, unless it is newer than serial: then the handle has been reused. */
bool xsi_rm_remove_object(uint32_t client, uint32_t handle, uint64_t serial);
bool xsi_rm_remove_client(uint32_t handle, uint64_t serial);
void xsi_rm_forget_gone(void);
void xsi_rm_forget_object(struct rm_object *object); /* freed, and the daemon knows */
void xsi_rm_forget_client(struct rm_client *client);
/* Follows the parents up to an object of that class; null if there is none. */
struct rm_object *xsi_rm_ancestor(const struct rm_object *object, uint32_t object_class);
void xsi_rm_release_client(struct rm_client *client);
/* In the order of allocation; the current one may be removed. */
#define rm_for_each(object) rm_for_each_from(object, xsi_rm_table.oldest)
#define rm_for_each_from(object, first)                                                            \
  for (uint16_t place_ = (first), next_ = 0;                                                       \
       place_ != RM_NONE &&                                                                        \
       ((object) = &xsi_rm_table.objects[place_], next_ = (object)->newer, 1);                     \
       place_ = next_)

/* ---- publish.c ------------------------------------------------------------------ */

void xsi_rm_tell(bool listening);
uint64_t xsi_rm_due_ns(void);
bool xsi_rm_overflowed(void);
/* Asks the driver for the timeslice of groups that are about to be told; no lock held. */
void xsi_rm_learn(void);
size_t xsi_rm_next_frame(void *frame, int *fd);
void xsi_rm_release(int fd); /* closes it if its client was freed meanwhile */
/* Something changed that the daemon should hear of within delay_ns; rm lock held. */
void xsi_rm_changed(uint64_t delay_ns);
/* More is about to change: let it happen first; rm lock held. */
void xsi_rm_postpone(uint64_t delay_ns);

/* ---- observer.c ------------------------------------------------------------------ */

int xsi_rm_ioctl(int fd, unsigned long request, void *argument);

/* ---- recover.c ------------------------------------------------------------------ */

/* Enables every channel of this process and restores its groups' original timeslices. 0, or -EAGAIN if a
 * channel may still be stopped. */
int xsi_rm_recover(void);
/* One RM_CONTROL on our duplicate: 0, -errno, or the driver's status (positive). */
int xsi_rm_call(int fd, uint32_t client, uint32_t object, uint32_t command, void *params,
                uint32_t bytes);

#endif /* XSCHED_RM_H */
