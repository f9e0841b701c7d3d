/* SPDX-License-Identifier: Apache-2.0
 *
 * The queues of this process, between observer.c and control.c.
 *
 * The lock is never held over a call of the driver. A queue has at most one call under way, the
 * application's or ours (busy); one that is being destroyed is left alone, so that its number can't
 * name another queue while we use it.
 */
#ifndef XSCHED_KFD_TABLE_H
#define XSCHED_KFD_TABLE_H

#include <pthread.h>

#include "frames.h"
#include "kfd.h"

enum { KFD_QUEUES = XSW_MAX_KFD_QUEUES, KFD_GPUS = 32, KFD_GONE = 1024 };

struct kfd_mask {
  uint32_t bits; /* 0: none */
  uint32_t words[KFD_CU_WORDS];
};

struct kfd_queue {
  bool used, busy, dying;
  uint32_t id, gpu_id, type;
  struct kfd_update_queue own; /* as the application wants it */
  struct kfd_mask own_mask;
  uint32_t percentage_now, priority_now; /* as the driver has it */
  bool mask_ours;                        /* the driver has a mask of ours */
  uint64_t mask_serial;                  /* which one */
  bool known;                            /* to the daemon */
  bool told;                             /* the daemon knows it, as it is */
  bool late;                             /* made while its kind was paused */
  bool suspended;                        /* in the session of joint.c, whatever its percentage */
  bool seen;                             /* by that session, which can't suspend it before */
};

enum kfd_session { KFD_SESSION_NONE, KFD_SESSION_CHANGES, KFD_SESSION_OPEN };

struct kfd_wish {
  uint32_t gpu_id;
  uint32_t paused; /* kinds */
  uint32_t lease;  /* number of the last pause's */
  int32_t priority;
  struct kfd_mask mask;
  uint64_t mask_serial;
};

struct kfd_table {
  pthread_mutex_t lock;
  uint32_t releases; /* futex: changes when a queue is no longer busy */
  uint32_t waiters;
  int fd;        /* our duplicate of the driver's file */
  unsigned used; /* queues[0 .. used) were used at least once */
  unsigned wish_count;
  /* joint.c */
  bool runtime; /* the driver knows that a runtime is in use, and a session is allowed */
  enum kfd_session session;
  unsigned session_users; /* requests under way in it */
  /* changes that the daemon does not know yet */
  bool listening;      /* there is one */
  uint32_t due;        /* 1: something; read without the lock */
  uint32_t overflowed; /* 1: more ended than can be remembered */
  unsigned gone_count;
  bool ordered, answered; /* an order waits to be carried out; its answer waits to be sent */
  struct xsw_order order;
  struct xsw_done answer;
  /* Apart, so that the child of a fork copies none of their pages. */
  uint32_t *const gone; /* queues it knows that have ended */
  struct kfd_wish *const wishes;
  struct kfd_queue *const queues;
};
extern struct kfd_table xsi_kfd_table;

uint32_t xsi_kfd_kind(uint32_t type);
/* publish.c, with the lock held: there is something to tell; the queue has ended. */
void xsi_kfd_changed(void);
void xsi_kfd_ended(struct kfd_queue *queue);
/* With the lock held, as all below: waits until no call is under way on it; null if it is gone. */
struct kfd_queue *xsi_kfd_take(uint32_t id);
void xsi_kfd_release(struct kfd_queue *queue);
/* Waits, without the lock, until something is released. */
void xsi_kfd_wait(void);
void xsi_kfd_wake(void);
/* Without the lock: the driver's result, or -errno. A signal of the application's may meet it. */
int xsi_kfd_call(int fd, unsigned long request, void *argument);

/* joint.c: one request for several queues, which the caller took. Both drop the lock during calls and
 * set suspended where it worked. Suspend opens a session, if allowed to. */
enum { KFD_BATCH = 256 };
void xsi_kfd_suspend(struct kfd_queue *const *queues, unsigned count, bool open);
int xsi_kfd_unsuspend(struct kfd_queue *const *queues, unsigned count); /* 0 or -errno */
/* Ends the session. Pauses stay in force. The caller has taken no queue. */
void xsi_kfd_session_end(void);

/* True if a pause of this queue is wanted. */
bool xsi_kfd_held(const struct kfd_queue *queue);
/* Deactivates a queue that the session suspended: the driver does not destroy a suspended one. */
void xsi_kfd_detach(struct kfd_queue *queue);
/* The wish in force for a GPU. */
struct kfd_wish xsi_kfd_wish_for(uint32_t gpu_id);
/* The update to send, from the application's own values and the wishes. */
struct kfd_update_queue xsi_kfd_wanted(const struct kfd_queue *queue,
                                       const struct kfd_update_queue *own);
/* Reconciles a queue that the caller took; drops the lock during calls. 0 or -errno. */
int xsi_kfd_sync(struct kfd_queue *queue);
/* The mask to send: the application's and ours, or ours if they have nothing in common. */
struct kfd_mask xsi_kfd_mask_for(const struct kfd_mask *own, const struct kfd_mask *ours);

#endif /* XSCHED_KFD_TABLE_H */
