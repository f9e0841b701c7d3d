// SPDX-License-Identifier: Apache-2.0
//
// The session with the daemon: away -> greeting -> joined -> (ending) -> away, all in the helper
// thread and never blocking. Any frame that violates the contract ends the session.

#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "counters.h"
#include "doorbell.h"
#include "driver.h"
#include "fd.h"
#include "frame.h"
#include "gate.h"
#include "hint.h"
#include "liveness.h"
#include "log.h"
#include "memory.h"
#include "options.h"
#include "page.h"
#include "private.h"
#include "queue.h"
#include "request.h"

enum state { AWAY, GREETING, JOINED, ENDING };

#define MS 1000000u
// The last: while no queue has work. A heartbeat's limit, after which the helper looks anyway.
enum { GREETING_LIMIT = 5000, TICK = 25, IDLE_TICK = 100 };

// After the end of a session that had a lease, the recovery is repeated: an operation that its
// daemon had in flight may stop the channels after the first.
static const uint32_t repeat_ms[] = {200, 1000, 5000};
enum { REPEATS = sizeof repeat_ms / sizeof *repeat_ms };

// A restarted daemon finds its clients back within a second; one that refuses may be upgraded
// meanwhile.
struct xsi_session_retry xsi_session_retry = {.first_ms = 100, .last_ms = 500, .refused_ms = 2000};

static struct {
  enum state state;
  int fd; // kept over failed attempts to connect: no new low number each time
  uint64_t retry_ns, retry_ms, greeting_ns, tick_ns;
  bool previous; // greet in the previous version, once
  bool private;  // with a private scheduler that the library started
  bool blocked;  // the socket is full
  // Recoveries planned since the last session ended, and the next; UINT64_MAX: no more.
  unsigned repeats;
  uint64_t ended_ns, repeat_ns;
  // Whose frame is being sent: NULL for the core's own.
  const struct xsi_driver *out_driver;
  size_t out_bytes;
  int out_fd;
} session XSI_FORK_STATE = {.fd = -1, .out_fd = -1, .repeat_ns = UINT64_MAX};

static union {
  struct xsw_hint_frame hint;
  unsigned char bytes[XSW_FRAME_MAX_BYTES];
} out; // the frame being sent

static char command[XSW_COMMAND_BYTES];
XSI_FORK_STATE uint32_t xsi_session_undecided;
static void decided(void) { __atomic_store_n(&xsi_session_undecided, 0, __ATOMIC_RELEASE); }
static XSI_FORK_STATE pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void xsi_session_lock(void) { pthread_mutex_lock(&lock); }
void xsi_session_unlock(void) { pthread_mutex_unlock(&lock); }

void xsi_session_prepare(void) {
  __atomic_store_n(&xsi_session_undecided, 1, __ATOMIC_RELEASE);
  int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ssize_t length = read(fd, command, sizeof command - 1);
  close(fd);
  if (length < 0) length = 0;
  command[length] = 0;
  for (ssize_t i = 0; i + 1 < length; i++)
    if (command[i] == 0) command[i] = ' ';
}

void xsi_session_unprepared(int error) {
  decided();
  xsi_log(XSI_ERROR, "no helper thread, running natively: errno=%d", -error);
}

static bool drivers_pending(void) {
  xsi_for_each_driver(driver)
    if (driver->pending != NULL && driver->pending()) return true;
  return false;
}

static uint64_t drivers_due_ns(void) {
  uint64_t due = UINT64_MAX;
  xsi_for_each_driver(driver)
    if (driver->due_ns() < due) due = driver->due_ns();
  return due;
}

int xsi_session_poll(short *events) {
  if (session.state != GREETING && session.state != JOINED) return -1;
  // No further frame while a driver carries out the last one, or its answer waits for room.
  *events = (short)((drivers_pending() ? 0 : POLLIN) | (session.blocked ? POLLOUT : 0));
  return session.fd;
}

static void drop_outgoing(void) {
  if (session.out_fd >= 0) session.out_driver->sent(session.out_fd);
  session.out_fd = -1;
  session.out_bytes = 0;
  session.blocked = false;
}

// Returns true if there is something to recover, which is everything; then xsi_session_recovered
// finishes the leaving.
static bool end(uint64_t now, uint64_t retry_ms, const char *why, int error) {
  xsi_fd_close(&session.fd);
  drop_outgoing();
  decided();
  xsi_for_each_driver(driver)
    driver->tell(false);
  session.retry_ms = retry_ms;
  session.retry_ns = now + retry_ms * MS;
  if (session.state != JOINED) {
    session.state = AWAY;
    xsi_log(XSI_WARN, "no session: %s errno=%d", why, -error);
    return false;
  }
  xsi_log(XSI_WARN, "session ended, running natively: %s errno=%d", why, -error);
  session.state = ENDING;
  xsi_liveness_leave();
  return true;
}

/* How long the helper waits for room in the daemon's queue of connections. Somebody else's flood fills it, and
 * places become free all the time: who only looks now and then finds none. */
#define CROWD_MS 20

static int connect_to(int fd, const struct sockaddr_un *address) {
  if (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0) return 0;
  int flags = errno == EAGAIN ? fcntl(fd, F_GETFL) : -1;
  if (flags < 0) return -errno;
  const struct timeval limit = {.tv_usec = CROWD_MS * 1000}, none = {.tv_sec = 0};
  int result = -EAGAIN;
  if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0 &&
      fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0) {
    result = connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 ? 0 : -errno;
    (void)fcntl(fd, F_SETFL, flags);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none);
  }
  return result;
}

static int try_connect(void) {
  if (session.fd < 0) {
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -errno;
    session.fd = xsi_fd_raise(fd);
  }
  struct sockaddr_un address;
  int result = -ENOENT;
  session.private = xsi_private_wanted();
  const char *directory = session.private ? xsi_private_directory() : NULL;
  for (unsigned i = 0; xsi_socket_candidate(i, directory, &address) == 0; i++) {
    if (address.sun_path[0] == 0) continue;
    result = connect_to(session.fd, &address);
    if (result == 0) {
      xsi_log(XSI_DEBUG, "connected to %s", address.sun_path);
      return 0;
    }
    if (result == -EBADF || result == -ENOTSOCK || result == -EISCONN) {
      session.fd = -1; // closed under us: not ours any more, not to be closed
      break;
    }
  }
  return result;
}

bool xsi_daemon_listens(void) {
  struct sockaddr_un address;
  bool found = false;
  for (unsigned i = 0; !found && xsi_socket_candidate(i, NULL, &address) == 0; i++) {
    if (address.sun_path[0] == 0) continue;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return false;
    found = connect_to(fd, &address) == 0;
    close(fd);
  }
  return found;
}

static int greet(void) {
  xsi_frame_version = session.previous ? XSW_VERSION_MIN : XSW_VERSION;
  struct xsw_hello hello = {
      .frame = xsi_frame_head(XSW_FRAME_HELLO, sizeof hello),
      .pid = (uint32_t)getpid(),
      .scheduler = xsi_scheduler(),
  };
  xsi_hint_hello(&hello);
  memcpy(hello.command, command, sizeof hello.command);
  size_t bytes = xsi_frame_narrow(&hello, sizeof hello, offsetof(struct xsw_hello, hint));
  return xsi_frame_send(session.fd, &hello, bytes, -1);
}

static void start(uint64_t now) {
  int result = try_connect();
  if (result == 0) {
    result = greet();
    // A daemon may refuse us before it reads a frame. Its reason waits in the socket.
    if (result == -EPIPE || result == -ECONNRESET) result = 0;
    if (result < 0) xsi_fd_close(&session.fd);
  }
  session.previous = false; // a daemon that comes later may be another
  if (result == 0) {
    session.state = GREETING;
    session.greeting_ns = now + (uint64_t)GREETING_LIMIT * MS;
    return;
  }
  decided();
  xsi_log(XSI_DEBUG, "no daemon: errno=%d", -result);
  session.retry_ns = now + session.retry_ms * MS;
  session.retry_ms *= 2;
  if (session.retry_ms > xsi_session_retry.last_ms) session.retry_ms = xsi_session_retry.last_ms;
}

static bool next_frame(uint64_t now) {
  xsi_for_each_driver(driver) {
    if (driver->due_ns() > now) continue;
    session.out_bytes = driver->next_frame(&out, &session.out_fd);
    session.out_driver = driver;
    if (session.out_bytes != 0) return true;
  }
  session.out_driver = NULL;
  // After the join only: a hint about a queue that is not published yet would be lost.
  if (!xsi_page_joined() || !xsi_hint_next_frame(&out.hint)) return false;
  out.hint.frame = xsi_frame_head(XSW_FRAME_HINT, sizeof out.hint);
  session.out_bytes =
      xsi_frame_narrow(&out.hint, sizeof out.hint, offsetof(struct xsw_hint_frame, hint));
  return true;
}

// Sends frames of the drivers, and hints, until the socket is full.
static int flush_frames(uint64_t now) {
  session.blocked = false;
  for (;;) {
    if (session.out_bytes == 0 && !next_frame(now)) return 0;
    int result = xsi_frame_send(session.fd, &out, session.out_bytes, session.out_fd);
    if (result == -EAGAIN) {
      session.blocked = true;
      return 0;
    }
    if (result < 0) return result;
    drop_outgoing();
  }
}

static int join(const struct xsi_frame *frame, uint64_t now) {
  const struct xsw_welcome *welcome = &frame->welcome;
  if (frame->bytes != sizeof *welcome || welcome->frame.version != xsi_frame_version ||
      welcome->page_bytes != xsi_page_bytes(xsi_frame_version) || frame->fd_count != 2)
    return -EPROTO;
  int result = xsi_doorbell_attach(frame->fds[1]);
  if (result < 0) return result;
  xsi_request_lock();
  xsi_queue_lock();
  result = xsi_page_join(frame->fds[0], welcome->session_id, xsi_frame_version);
  xsi_queue_unlock();
  if (result == 0) xsi_request_publish();
  xsi_request_unlock();
  if (result < 0) {
    xsi_doorbell_detach();
    return result;
  }
  // From here on the end of the session needs a recovery. Objects go before queues, so that the daemon
  // knows how to preempt a queue when it sees one.
  session.state = JOINED;
  session.repeat_ns = UINT64_MAX; // from here on it is the new session's to stop and to let go
  xsi_liveness_join(now);
  xsi_for_each_driver(driver)
    driver->tell(true);
  result = flush_frames(now);
  xsi_queue_lock();
  xsi_queue_publish_all();
  xsi_memory_publish();
  xsi_queue_hints_untold();
  xsi_page_set_joined(true);
  xsi_queue_unlock();
  xsi_counters_publish();
  xsi_doorbell_ring();
  decided();
  session.tick_ns = now + TICK * MS;
  xsi_log(XSI_INFO, "joined session=%llu version=%u", (unsigned long long)welcome->session_id,
          xsi_frame_version);
  return result;
}

// A daemon of the previous release refuses our version and would accept its own.
static bool is_previous(const struct xsi_frame *frame) {
  const struct xsw_refused *refused = &frame->refused;
  return session.state == GREETING && xsi_frame_version == XSW_VERSION &&
         frame->bytes == sizeof *refused && refused->client_version == XSW_VERSION &&
         refused->daemon_version == XSW_VERSION_MIN;
}

static bool refused(const struct xsi_frame *frame, uint64_t now) {
  if (is_previous(frame)) {
    session.previous = true;
    return end(now, 0, "the daemon speaks the previous version", 0);
  }
  if (frame->bytes >= sizeof frame->refused)
    xsi_log(XSI_ERROR, "the daemon refuses us: %.*s",
            (int)strnlen(frame->refused.reason, sizeof frame->refused.reason),
            frame->refused.reason);
  return end(now, xsi_session_retry.refused_ms, "refused", 0);
}

// A frame for a driver. The helper carries it out with no lock held.
static int deliver(const struct xsi_frame *frame) {
  uint32_t type = frame->head.type;
  if (frame->head.version != xsi_frame_version || frame->fd_count != 0) return -EPROTO;
  xsi_for_each_driver(driver) {
    if (driver->receive != NULL && type >= driver->first_frame &&
        type - driver->first_frame < XSW_FRAME_GROUP)
      return driver->receive(frame->bytes_, frame->bytes);
  }
  return -EPROTO;
}

static bool receive(uint64_t now) {
  struct xsi_frame frame;
  int result = xsi_frame_receive(session.fd, &frame);
  if (result == -EAGAIN) return false;
  if (result == -EPIPE) return end(now, xsi_session_retry.first_ms, "the daemon went", result);
  if (result < 0) return end(now, xsi_session_retry.last_ms, "bad frame", result);
  bool recover;
  if (frame.head.type == XSW_FRAME_REFUSED) {
    recover = refused(&frame, now);
  } else if (frame.head.type == XSW_FRAME_WELCOME && session.state == GREETING) {
    result = join(&frame, now);
    recover = result < 0 &&
              end(now, result == -EPIPE ? xsi_session_retry.first_ms : xsi_session_retry.last_ms,
                  "bad welcome", result);
  } else {
    result = session.state == JOINED ? deliver(&frame) : -EPROTO;
    recover = result < 0 && end(now, xsi_session_retry.last_ms, "unexpected frame", result);
  }
  xsi_frame_close(&frame);
  return recover;
}

static bool step_joined(uint64_t now, uint64_t *next_ns, struct xsi_recovery *recovery) {
  xsi_for_each_driver(driver) {
    if (driver->overflowed())
      return end(now, xsi_session_retry.first_ms, "too many changes at once", -ENOBUFS);
  }
  uint64_t due = drivers_due_ns();
  if (session.out_bytes != 0 || due <= now || xsi_queue_hints_due()) {
    int result = flush_frames(now);
    if (result < 0) return end(now, xsi_session_retry.first_ms, "cannot send", result);
    due = session.blocked ? UINT64_MAX : drivers_due_ns();
  }
  if (now >= session.tick_ns) {
    session.tick_ns = now + (xsi_queue_tick() ? TICK : IDLE_TICK) * MS;
    xsi_counters_publish();
  }
  bool recover = xsi_liveness_check(now, next_ns, recovery);
  if (due < *next_ns) *next_ns = due;
  if (session.tick_ns < *next_ns) *next_ns = session.tick_ns;
  return recover;
}

static bool step(uint64_t now, short revents, uint64_t *next_ns, struct xsi_recovery *recovery) {
  if (session.retry_ms == 0) session.retry_ms = xsi_session_retry.first_ms;
  if (xsi_scheduler() == XSW_SCHEDULER_APP) {
    if ((session.state == GREETING || session.state == JOINED) &&
        end(now, 0, "the program schedules itself", 0))
      return true;
    session.retry_ns = 0; // at once, should it change its mind
    *next_ns = UINT64_MAX;
    return false;
  }
  if ((session.state == GREETING || session.state == JOINED) &&
      session.private != xsi_private_wanted() && end(now, 0, "the program chose a scheduler", 0))
    return true;
  bool awaited = xsi_private_wanted() && xsi_private_directory() == NULL;
  if (session.state == AWAY && now >= session.retry_ns && !awaited) start(now);
  if ((revents & (POLLIN | POLLHUP | POLLERR)) != 0 && receive(now)) return true;
  if ((revents & POLLNVAL) != 0) {
    session.fd = -1; // the application closed it
    if (end(now, xsi_session_retry.first_ms, "descriptor closed", -EBADF)) return true;
  }
  if (session.state == GREETING && now >= session.greeting_ns)
    end(now, xsi_session_retry.last_ms, "no answer", -ETIMEDOUT);
  if (session.state == JOINED) return step_joined(now, next_ns, recovery);
  *next_ns = session.state == GREETING ? session.greeting_ns : session.retry_ns;
  if (session.state == AWAY && awaited) *next_ns = UINT64_MAX; // xsi_private_step comes again
  return false;
}

bool xsi_session_step(uint64_t now, short revents, uint64_t *next_ns,
                      struct xsi_recovery *recovery) {
  *recovery = (struct xsi_recovery){.all = true};
  if (now >= session.repeat_ns) return true; // never while joined; what came is read next time
  if (step(now, revents, next_ns, recovery)) {
    if (session.state == ENDING) *recovery = xsi_liveness_all();
    return true;
  }
  if (session.repeat_ns < *next_ns) *next_ns = session.repeat_ns;
  return false;
}

// When to recover next after the session's end: a few times, and on until it has worked.
static void plan_repeat(uint64_t now, bool done) {
  if (session.repeats == REPEATS) {
    session.repeat_ns = done ? UINT64_MAX : now + (uint64_t)repeat_ms[REPEATS - 1] * MS;
    return;
  }
  session.repeat_ns = session.ended_ns + (uint64_t)repeat_ms[session.repeats++] * MS;
}

void xsi_session_recovered(uint64_t now, const struct xsi_recovery *recovery, bool done) {
  if (session.state != JOINED && session.state != ENDING) {
    plan_repeat(now, done);
    return;
  }
  // While the page is still shared: a daemon that only lost the socket must know, too.
  if (done)
    xsi_liveness_recovered(recovery);
  else
    xsi_liveness_failed(recovery, now);
  xsi_log(done ? XSI_INFO : XSI_WARN, "%s lease=%u", done ? "recovered" : "cannot recover",
          recovery->all ? 0 : recovery->lease.number);
  if (session.state != ENDING) return;
  session.repeats = 0;
  session.ended_ns = now;
  if (xsi_liveness_any_lease(recovery) || !done) plan_repeat(now, done);
  xsi_counters_publish();
  xsi_memory_remember();
  xsi_queue_lock();
  xsi_page_set_joined(false);
  xsi_page_leave();
  xsi_queue_unlock();
  xsi_doorbell_detach();
  session.state = AWAY;
  if (session.retry_ns < now) session.retry_ns = now;
}

void xsi_session_reset(void) {
  xsi_page_set_joined(false);
  session.out_fd = -1; // its driver closes it
  xsi_fd_close(&session.fd);
  memset(&session, 0, sizeof session);
  session.fd = session.out_fd = -1;
  session.repeat_ns = UINT64_MAX;
}
