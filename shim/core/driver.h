/* SPDX-License-Identifier: Apache-2.0
 *
 * What the core asks of a kernel driver's part (shim/driver): which hardware queues the process has,
 * what only their owner may do to them, and how to undo all of it. The core knows drivers only as the
 * entries of one table.
 */
#ifndef XSCHED_CORE_DRIVER_H
#define XSCHED_CORE_DRIVER_H

#include "base.h"
#include "xsched/wire.h"

/* The lease of one device. */
struct xsi_lease {
  uint32_t number; /* 1 + its index in the page */
  uint32_t pci_domain, pci_bus_slot;
};

struct xsi_driver {
  const char *name;

  /* Is this request of the application for the driver? Byte 1 of the number is its type, which several
   * drivers may share: such a one looks at the file, too. Runs for every ioctl of the process. */
  bool (*claims)(int fd, unsigned long request);
  /* Makes the real call and returns what that returned. */
  int (*ioctl)(int fd, unsigned long request, void *argument);

  /* Its own environment variables, once, at load: later reads would race with the application's setenv.
   * NULL: it has none. */
  void (*read_options)(void);

  /* fork: the lock below the queue lock, and forgetting everything in the child. */
  void (*lock)(void);
  void (*unlock)(void);
  void (*reset)(void);

  /* A session begins and knows nothing, or ends. */
  void (*tell)(bool listening);
  /* When next_frame has something to send: a time, 0 for now, UINT64_MAX for never. */
  uint64_t (*due_ns)(void);
  /* Asks the kernel driver what next_frame needs; called without locks. NULL: nothing. */
  void (*prepare)(void);
  /* Writes the next frame, head included, into XSW_FRAME_MAX_BYTES of room: its size, 0 for none.
   * *fd >= 0 goes with it. */
  size_t (*next_frame)(void *frame, int *fd);
  void (*sent)(int fd); /* fd of that frame is not needed any more; NULL if there never is one */
  /* More has changed than can be remembered: the session must start over. */
  bool (*overflowed)(void);

  /* Frames from the daemon of types [first, first + XSW_FRAME_GROUP); NULL: there are none. Takes
   * one, or returns -EPROTO. While pending it gets no other; obey carries it out without locks. */
  uint32_t first_frame;
  int (*receive)(const void *frame, size_t bytes);
  bool (*pending)(void);
  bool (*obey)(void); /* false: there is nothing to carry out */

  /* Fail open: everything as the application made it, on the device of a lease that ended, or
   * (NULL) on all. What may be on that device counts as being there. Without locks; 0, or -EAGAIN. */
  int (*recover)(const struct xsi_lease *lease);
};

/* Ends with NULL; shim/driver/registry.c. */
extern const struct xsi_driver *const xsi_drivers[];

#define xsi_for_each_driver(driver)                                                                \
  for (const struct xsi_driver *const *at_ = xsi_drivers, *driver; (driver = *at_) != NULL; at_++)

#endif /* XSCHED_CORE_DRIVER_H */
