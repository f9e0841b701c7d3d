/* SPDX-License-Identifier: Apache-2.0
 *
 * What the core's own files ask of each other; everybody else uses core.h.
 */
#ifndef XSCHED_PARTS_H
#define XSCHED_PARTS_H

#include <pthread.h>
#include <sys/un.h>

#include "core.h"

/* Variables a hook reads in every thread: no call to find them. */
#define XSI_THREAD _Thread_local __attribute__((tls_model("initial-exec")))

/* ---- elf.c: a function of libc, found without calling any other function --------- */
void *xsi_elf_libc_function(const char *name);

/* ---- real.c, options.c, log.c: run by xsi_init, once ---------------------------- */
/* The first dlsym of a process calls this and nothing more: a sanitizer asks before libc is usable.
 */
void xsi_real_find_dlsym(void);
void xsi_real_init(void);
void xsi_options_init(void);
void xsi_log_init(void);
/* Copies a variable; false if unset or too long (logged). Never from a set-uid environment. */
bool xsi_environment(const char *name, char *value, unsigned bytes);
/* Is there a daemon that was named? A private scheduler is never looked for elsewhere. */
bool xsi_place_named(void);
/* The whole text as a decimal number within the limits. */
bool xsi_parse_decimal(const char *text, long minimum, long maximum, long *value);
/* Where a daemon may listen, in order of preference: 0, or -ENOENT after the last one. */
int xsi_socket_candidate(unsigned index, struct sockaddr_un *address);

/* ---- fd.c ----------------------------------------------------------------------- */
/* Moves fd, which it takes over, out of the application's low numbers; close-on-exec. */
int xsi_fd_raise(int fd);
int xsi_fd_duplicate(int fd); /* the same for a copy: the new number or -errno */
void xsi_fd_close(int *fd);   /* closes if open, sets -1 */

/* ---- page.c --------------------------------------------------------------------- */
void xsi_page_init(void);
/* Both with the queue lock held. */
int xsi_page_join(int memfd, uint64_t session_id);
void xsi_page_leave(void);

/* ---- queue.c -------------------------------------------------------------------- */
void xsi_queue_lock(void);
void xsi_queue_unlock(void);
void xsi_queue_publish_all(void); /* lock held: every open queue into a page just joined */
void xsi_queue_tick(void);        /* the lazily published numbers */
void xsi_queue_wake_held(void);   /* every launcher asleep at a gate looks again */
void xsi_queue_reset(void);       /* in the child of a fork */
void xsi_queue_hints_untold(void); /* lock held: a new session knows none */
bool xsi_queue_any(void); /* was any ever opened? */
/* The next hint of a queue that is not told yet. */
bool xsi_queue_next_hint(struct xsw_hint_frame *frame);

/* ---- hint.c --------------------------------------------------------------------- */
void xsi_hint_init(void);                           /* from the options */
void xsi_hint_hello(struct xsw_hello *hello);       /* all that holds now; then it is told */
bool xsi_hint_next_frame(struct xsw_hint_frame *frame); /* what has changed since; false: nothing */
bool xsi_hint_due(void);
void xsi_hint_mark_due(void);
void xsi_hint_reset(void);

/* ---- request.c: the lock is above the queues' --------------------------------------- */
void xsi_request_lock(void);
void xsi_request_unlock(void);
void xsi_request_publish(void); /* lock held: into a page just joined */
void xsi_request_reset(void);

/* ---- doorbell.c ----------------------------------------------------------------- */
int xsi_doorbell_init(void);
int xsi_doorbell_attach(int eventfd); /* does not take eventfd over */
void xsi_doorbell_detach(void);
void xsi_doorbell_ring(void);
void xsi_doorbell_reset(void);

/* ---- liveness.c: heartbeat and lease -------------------------------------------- */
void xsi_liveness_join(uint64_t now_ns);
void xsi_liveness_leave(void); /* native from here on */
/* As the gate asks, from any thread. */
bool xsi_liveness_silent(uint64_t now_ns);
/* As the helper asks: true if channels and timeslices are to be restored now; *next_ns: when to
 * look again. */
bool xsi_liveness_check(uint64_t now_ns, uint64_t *next_ns);
/* Before and after that restoring. */
uint64_t xsi_liveness_epoch(void);
void xsi_liveness_recovered(uint64_t epoch, bool first);
void xsi_liveness_failed(uint64_t now_ns); /* it is to be tried again soon */
void xsi_liveness_reset(void);

/* ---- counters.c ----------------------------------------------------------------- */
void xsi_counters_init(void);
void xsi_counters_lock(void);
void xsi_counters_unlock(void);
void xsi_counters_idle(void);         /* a queue went idle: publish if that is cheap */
void xsi_counters_publish_last(void); /* at exit: gives up rather than wait for a lock for long */
void xsi_counters_reset(void);

/* ---- session.c: all in the helper thread, with the session lock held ------------ */
extern struct xsi_session_retry { uint32_t first_ms, last_ms, refused_ms; } xsi_session_retry;
void xsi_session_lock(void); /* so that a fork copies no descriptor we do not know of */
void xsi_session_unlock(void);
void xsi_session_prepare(void); /* in the application's thread, before the helper starts */
int xsi_session_poll(short *events);
/* One step. True if the caller must drop the lock, call xsi_rm_recover and then
 * xsi_session_recovered, with what became of it. */
bool xsi_session_step(uint64_t now_ns, short revents, uint64_t *next_ns);
void xsi_session_recovered(uint64_t now_ns, bool done);
/* An order that came: to be carried out with the lock dropped, and answered. */
bool xsi_session_order(struct xsw_order *order);
void xsi_session_answer(const struct xsw_done *answer);
bool xsi_session_joined(void); /* any thread */
void xsi_session_reset(void);

/* ---- helper.c ------------------------------------------------------------------- */
void xsi_helper_start(void);
void xsi_helper_lock(void);
void xsi_helper_unlock(void);
void xsi_helper_reset(void);

/* ---- fork.c --------------------------------------------------------------------- */
void xsi_fork_init(void);

/* ---- rm/: the objects to tell the daemon of ------------------------------------- */
void xsi_rm_lock(void);
void xsi_rm_unlock(void);
void xsi_rm_reset(void);
void xsi_rm_tell_all(void);  /* a new session knows nothing */
void xsi_rm_tell_none(void); /* nobody listens */
/* When something is to be told: a time, UINT64_MAX for nothing. */
uint64_t xsi_rm_due_ns(void);
/* Asks the driver for the timeslice of groups about to be told. Calls the driver: no lock held. */
void xsi_rm_learn(void);
/* The next frame: its number of events, 0 when all is told. *fd >= 0 goes with it; give it back by
 * release. */
uint32_t xsi_rm_next_frame(struct xsw_rm *frame, int *fd);
void xsi_rm_release(int fd); /* closes it if its client was freed meanwhile */
/* More was freed while the daemon did not listen than can be remembered: the session must start
 * over. */
bool xsi_rm_overflowed(void);

#endif /* XSCHED_PARTS_H */
