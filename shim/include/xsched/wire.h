/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract between libxsched.so (inside an application) and `xsched serve`.
 *
 * This header is the one source. internal/wire/wire_gen.go is generated from
 * it (make generate); the asserts at the end and the offset tests in Go hold
 * both sides to it. The subset of C used here is what tools/wiregen reads:
 * #define NAME integer, enum blocks, and structs of u32/u64/i32/char fields
 * and arrays of them. No implicit padding: what is empty is named _rsv.
 *
 * Every field has exactly one writer. "daemon" fields are never written by the
 * client and the other way round; "once" means before the page is shared.
 */
#ifndef XSCHED_WIRE_H
#define XSCHED_WIRE_H

#include <stdint.h>

/* ---- limits ------------------------------------------------------------ */

#define XSW_VERSION 4              /* raised when anything below changes */
#define XSW_PAGE_MAGIC 0x58534348  /* "XSCH": first word of the shared page */
#define XSW_FRAME_MAGIC 0x58534652 /* "XSFR": first word of every frame */
#define XSW_MAX_QUEUES 1024        /* queues (contexts, or streams when asked) a process */
#define XSW_HEADER_BYTES 4096      /* header area in front of the queues */
#define XSW_QUEUE_BYTES 128        /* two cache lines: one the daemon's, one the client's */
#define XSW_PAGE_BYTES 135168      /* XSW_HEADER_BYTES + XSW_MAX_QUEUES * XSW_QUEUE_BYTES */
#define XSW_FRAME_MAX_BYTES 4096   /* a longer packet ends the session */
#define XSW_FRAME_MAX_FDS 2
#define XSW_FRAME_GROUP 256 /* frame types of one driver */
/* The PCI domain of devices that have no PCI address, such as a CPU device of OpenCL. */
#define XSW_NO_PCI_DOMAIN 0xffff0000
#define XSW_COMMAND_BYTES 256
#define XSW_REASON_BYTES 192
#define XSW_GANG_BYTES 64       /* of a gang's name, with its NUL */
#define XSW_POLICY_BYTES 32     /* of a policy's name, with its NUL */
#define XSW_REQUESTS_OFFSET 512 /* struct xsw_requests in the page's header area */
#define XSW_REQUEST_NAMES 16    /* kinds of request a process can tell apart */
#define XSW_REQUEST_NAME_BYTES 48
#define XSW_REQUEST_NAMES_BYTES 768
#define XSW_REQUEST_RING 64      /* finished requests that wait to be read */
#define XSW_QUEUE_ALL 0xffffffff /* a hint about the process, not about one queue */
#define XSW_PRIORITY_MIN (-256)  /* -256: never run */
#define XSW_PRIORITY_MAX 255

/* The daemon's engine writes the heartbeat at least this often, and a client
 * that has seen none for the limit runs natively until the next one. */
#define XSW_HEARTBEAT_PERIOD_NS 20000000
#define XSW_HEARTBEAT_LIMIT_NS 100000000

/* ---- shared page ------------------------------------------------------- */

enum xsw_gate {
  XSW_GATE_OPEN = 0, /* zero, so that a page of zeros holds nobody */
  XSW_GATE_HELD = 1,
};

/* Byte 0 of the page. All times are CLOCK_MONOTONIC nanoseconds. */
struct xsw_header {
  /* line 0: identity, daemon, once */
  uint32_t magic;
  uint32_t version;
  uint32_t page_bytes;
  uint32_t max_queues;
  uint64_t session_id;
  uint64_t heartbeat_limit_ns;
  uint64_t _rsv0[4];

  /* line 1: liveness and lease, daemon */
  uint64_t heartbeat_ns;      /* written by the engine loop itself */
  uint64_t lease_epoch;       /* names the newest suspension; 0: none was ever made */
  uint64_t lease_deadline_ns; /* 0: nothing suspended; else the client undoes it after this */
  uint64_t _rsv1[5];

  /* line 2: the client's answer to an expired lease, client */
  uint64_t recovered_epoch; /* the client has undone every suspension up to this lease */
  uint64_t recoveries;      /* how often it had to */
  uint64_t _rsv2[6];

  /* line 3: counters, client; published on idle changes, by the helper's tick and at exit */
  uint64_t hooked_calls; /* every intercepted driver call */
  uint64_t launches;     /* kernel and graph launches the driver accepted */
  uint64_t copies;       /* copies and memsets the driver accepted */
  uint64_t syncs;        /* synchronisations that returned */
  uint64_t captured;     /* launches into a capturing stream: not work */
  uint64_t gate_waits;   /* launches that were held at the gate */
  uint64_t gate_wait_ns; /* and for how long in all */
  uint64_t unhooked;     /* known entry points, asked for by name, that could not be matched */

  uint64_t queue_count; /* queues[0 .. queue_count) were used at least once */
  uint64_t _rsv3[7];
};

/* A request that a program marked as finished. */
struct xsw_request {
  uint64_t sequence; /* 1, 2, ...: which one this is; 0 while it is being written */
  uint64_t begin_ns;
  uint64_t end_ns;
  uint32_t name; /* index into names */
  uint32_t _rsv;
};

/* At XSW_REQUESTS_OFFSET, client: requests as the program marks them. The ring holds the newest;
 * what the daemon did not read in time is lost to it and only counted. */
struct xsw_requests {
  uint64_t begun;
  uint64_t finished; /* written after the ring */
  uint64_t untold;   /* not marked: too many at once, or too many names */
  uint64_t _rsv[5];
  char names[XSW_REQUEST_NAMES_BYTES];       /* NUL-terminated each; never change */
  struct xsw_request ring[XSW_REQUEST_RING]; /* by (sequence - 1) % XSW_REQUEST_RING */
};

enum xsw_queue_kind {
  XSW_QUEUE_CONTEXT = 0, /* all of a context's streams that are no queue of their own */
  XSW_QUEUE_STREAM = 1,  /* one stream: only Lv1 can tell it from its neighbours */
};

/* One schedulable queue: a context on a device, or a stream when asked. */
struct xsw_queue {
  /* line 0: daemon */
  uint32_t gate;      /* enum xsw_gate; also the futex word a held launcher waits on */
  uint32_t in_flight; /* most launches in flight while Lv1 is in force; 0: no limit */
  uint32_t batch;     /* launches between two of our events while a limit is in force */
  uint32_t quiet;     /* 1: no decision depends on this queue's work, so the doorbell stays silent.
                         The client changes transitions and then looks here, the daemon changes this
                         and then looks there, both sequentially consistent: one sees the other */
  uint32_t _rsv0[12];

  /* line 1: client */
  uint64_t transitions;  /* changes between idle and busy: odd = busy. One word, so one read tells
                            both the state and whether a change was missed */
  uint64_t changed_ns;   /* when that was */
  uint64_t generation;   /* 0: never used; odd: in use; even: destroyed */
  uint32_t pci_domain;   /* PCI address of the device, or XSW_NO_PCI_DOMAIN */
  uint32_t pci_bus_slot; /* bus << 8 | device << 3 | function; without PCI: the device's ordinal */
  int32_t priority;      /* added to the process's: of a stream, bigger is more important; else 0 */
  uint32_t kind;         /* enum xsw_queue_kind */
  uint64_t submitted;    /* work submitted, published as the counters are */
  /* Signed: total busy time. While busy, the start of the busy period is subtracted, and the reader
   * adds its own time. One word, so that no reading can be torn. */
  uint64_t busy_ns;
  /* When a thread last began to wait for this queue after submitting: it submits nothing more until
   * the wait ends. Not kept while the queue is quiet. */
  uint64_t fed_ns;
};

/* ---- frames: one SOCK_SEQPACKET packet each ----------------------------- */

enum xsw_frame_type {
  XSW_FRAME_HELLO = 1,   /* client -> daemon, first */
  XSW_FRAME_WELCOME = 2, /* daemon -> client, with the page and doorbell fds */
  XSW_FRAME_REFUSED = 3, /* daemon -> client, then the daemon closes */
  XSW_FRAME_HINT = 4,    /* client -> daemon: hints that changed */
  /* From XSW_FRAME_GROUP on: frames of drivers, in shim/driver/NAME/frames.h. */
};

/* Starts every frame; this struct never changes, so that versions can tell each other apart. */
struct xsw_frame {
  uint32_t magic;
  uint32_t version;
  uint32_t type;  /* enum xsw_frame_type */
  uint32_t bytes; /* of the whole packet */
};

enum xsw_level {
  XSW_LEVEL_AUTO = 0, /* the best one that the device really does */
  XSW_LEVEL_BLOCK = 1,
  XSW_LEVEL_DEACTIVATE = 2,
  XSW_LEVEL_INTERRUPT = 3,
};

enum xsw_scheduler {
  XSW_SCHEDULER_APP = 1, /* the program itself: it opens no session */
  XSW_SCHEDULER_LOCAL = 2,
  XSW_SCHEDULER_GLOBAL = 3,
};

/* struct xsw_hint and enum xsw_hint_field: what a program states about itself or one of its queues. An
 * unset field keeps its value; a field set to 0 returns to its default. */
#include "xsched/wire_hints_gen.h"

struct xsw_hello {
  struct xsw_frame frame;
  uint32_t pid;         /* as the client sees it: for display; the socket's credentials decide */
  uint32_t scheduler;   /* enum xsw_scheduler */
  struct xsw_hint hint; /* of the process */
  char policy[XSW_POLICY_BYTES];   /* wished of a private daemon; empty: none */
  char command[XSW_COMMAND_BYTES]; /* NUL-terminated, cut if longer */
};

struct xsw_hint_frame {
  struct xsw_frame frame;
  uint32_t queue; /* slot, or XSW_QUEUE_ALL */
  uint32_t _rsv;
  uint64_t generation; /* of the slot, so that a hint can't meet the slot's next queue */
  struct xsw_hint hint;
  char policy[XSW_POLICY_BYTES];
};

/* fds: the page (memfd), the doorbell (eventfd) */
struct xsw_welcome {
  struct xsw_frame frame;
  uint64_t session_id;
  uint32_t page_bytes;
  uint32_t _rsv;
};

struct xsw_refused {
  struct xsw_frame frame;
  uint32_t daemon_version;
  uint32_t client_version;
  char reason[XSW_REASON_BYTES]; /* one line: the cause and what to do */
};

/* ---- both sides agree ---------------------------------------------------- */

_Static_assert(sizeof(struct xsw_header) == 5 * 64, "header is five cache lines");
_Static_assert(sizeof(struct xsw_header) <= XSW_REQUESTS_OFFSET, "header ends before the requests");
_Static_assert(sizeof(struct xsw_requests) <= XSW_HEADER_BYTES - XSW_REQUESTS_OFFSET, "requests");
_Static_assert(XSW_REQUEST_NAMES_BYTES == XSW_REQUEST_NAMES * XSW_REQUEST_NAME_BYTES, "names");
_Static_assert(sizeof(struct xsw_hint) % 8 == 0, "a hint can be nested");
_Static_assert(sizeof(struct xsw_queue) == XSW_QUEUE_BYTES, "a queue is two cache lines");
_Static_assert(XSW_PAGE_BYTES == XSW_HEADER_BYTES + XSW_MAX_QUEUES * XSW_QUEUE_BYTES, "page size");
_Static_assert(sizeof(struct xsw_frame) == 16, "frame header never changes");
_Static_assert(sizeof(struct xsw_hello) <= XSW_FRAME_MAX_BYTES, "hello fits a packet");

#endif /* XSCHED_WIRE_H */
