/* SPDX-License-Identifier: Apache-2.0
 *
 * NVIDIA's resource manager: the objects that this process holds, as its ioctls show them.
 */
#ifndef XSCHED_RM_H
#define XSCHED_RM_H

#include "abi.h"
#include "core/base.h"
#include "core/driver.h"
#include "frames.h"

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
  uint32_t gpu_id;       /* of a subdevice, by the driver; 0: not known */
  uint16_t newer, older; /* in the order of allocation: a parent before its children */
  uint16_t chain;        /* of one hash value, or of free places */
  uint16_t children;
  bool told, gone, doomed;
  bool slice_known; /* timeslice_us is the application's (or the driver's default) */
  bool slice_asked; /* no need to ask the driver (again) */
  bool slice_own;   /* the application set it */
  bool slice_told;
  bool gpu_asked; /* no need to ask the driver (again) */
};

struct rm_table {
  struct rm_client clients[XSW_MAX_RM_CLIENTS];
  uint16_t oldest, newest;
  bool listening;  /* a session is there to be told */
  bool overflowed; /* too much to tell: it has to start over */
  uint64_t due_ns, change_ns;
  uint32_t recovering; /* atomic; not a lock, so that a fork need not wait for the driver */
  struct rm_object
      *const objects; /* apart, so that the child of a fork copies none of their pages */
};
extern struct rm_table xsi_rm_table;

struct rm_client *xsi_rm_find_client(uint32_t handle);
bool xsi_rm_any_group(void); /* also without the lock */
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
/* Asks the driver for the timeslice of groups that are about to be told, and for the GPU of
 * subdevices; no lock held. */
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

/* Enables every channel of this process and restores its groups' original timeslices, on the device
 * of a lease or (NULL) on all. 0, or -EAGAIN if a channel may still be stopped. */
int xsi_rm_recover(const struct xsi_lease *lease);
/* One RM_CONTROL on our duplicate: 0, -errno, or the driver's status (positive). */
int xsi_rm_call(int fd, uint32_t client, uint32_t object, uint32_t command, void *params,
                uint32_t bytes);

#endif /* XSCHED_RM_H */
