/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract between libxsched.so (inside an application) and `xsched serve`.
 *
 * internal/wire/wire_gen.go is generated from this header (make generate). The asserts at the end
 * and the offset tests in Go check both sides. tools/wiregen accepts only #define NAME integer,
 * enum blocks, and structs of u32/u64/i32/char fields and arrays. Padding is explicit, named _rsv.
 *
 * Every field has exactly one writer, the daemon or the client; "once" means before sharing.
 *
 * Versions. A daemon of version N serves libraries of version N and N-1, and the reverse:
 *
 *   - HELLO states the library's version. The daemon answers in that version: WELCOME, the page's
 *     header and every later frame. A frame of another version ends the session.
 *   - A daemon of version N-1 refuses HELLO of version N and states its own version in REFUSED. The
 *     library then repeats HELLO with N-1. It starts with N again on each new connection.
 *   - Any other version is refused. Both sides run natively meanwhile, and the library tries again.
 *
 * A version may change, relative to the one before it:
 *
 *   - Reserved fields and the unused end of the header area (zero in older versions) get a meaning.
 *     Zero must mean what the older version does.
 *   - New frame types, enum values and bits. The sender uses them only in sessions of a version that
 *     has them.
 *   - The page grows at its end. XSW_PAGE_BYTES_N keeps the size of version N.
 *   - struct xsw_hint grows at its end. XSW_HINT_BYTES_N and XSW_HINT_ALL_N keep the size and the
 *     bits of version N; both sides convert HELLO and HINT.
 *
 * Nothing else may change: no field moves, no value changes its meaning, no other frame changes its
 * size. struct xsw_frame and struct xsw_refused never change. internal/wire/testdata/layout-N.txt
 * records each version; a test compares it with this header and with its predecessor.
 */
#ifndef XSCHED_WIRE_H
#define XSCHED_WIRE_H

#include <stdint.h>

/* ---- limits ------------------------------------------------------------ */

#define XSW_VERSION 5              /* increment on any change below */
#define XSW_VERSION_MIN 4          /* the previous release; both sides still speak it */
#define XSW_PAGE_MAGIC 0x58534348  /* "XSCH": first word of the shared page */
#define XSW_FRAME_MAGIC 0x58534652 /* "XSFR": first word of every frame */
#define XSW_MAX_QUEUES 1024        /* per process: contexts, or streams on request */
#define XSW_HEADER_BYTES 4096      /* header area in front of the queues */
#define XSW_QUEUE_BYTES 128        /* one cache line each for daemon and client */
#define XSW_PROGRESS_OFFSET 135168 /* struct xsw_progress of each queue; version 5 */
#define XSW_PROGRESS_BYTES 64      /* a cache line each */
#define XSW_MEMORY_OFFSET 200704   /* struct xsw_memory; version 5 */
#define XSW_MEMORY_NO_QUOTA 0x7fffffffffffffff
#define XSW_MEMORY_DEVICES 16    /* devices of one process whose memory is accounted for */
#define XSW_MEMORY_FIXED 8       /* reasons of enum xsw_fixed */
#define XSW_PAGE_BYTES 208896    /* XSW_MEMORY_OFFSET + 8192 */
#define XSW_PAGE_BYTES_4 135168  /* size of the page in version 4 */
#define XSW_FRAME_MAX_BYTES 4096 /* a longer packet ends the session */
#define XSW_FRAME_MAX_FDS 2
#define XSW_FRAME_GROUP 256 /* frame types of one driver */
/* PCI domain of devices without a PCI address, such as an OpenCL CPU device. */
#define XSW_NO_PCI_DOMAIN 0xffff0000
#define XSW_COMMAND_BYTES 256
#define XSW_REASON_BYTES 192
#define XSW_GANG_BYTES 64       /* gang name with its NUL */
#define XSW_POLICY_BYTES 32     /* policy name with its NUL */
#define XSW_REQUESTS_OFFSET 512 /* struct xsw_requests in the page's header area */
#define XSW_REQUEST_NAMES 16    /* request names per process */
#define XSW_REQUEST_NAME_BYTES 48
#define XSW_REQUEST_NAMES_BYTES 768
#define XSW_REQUEST_RING 64      /* finished requests kept for the daemon */
#define XSW_LEASES_OFFSET 3392   /* struct xsw_leases in the page's header area; version 5 */
#define XSW_MAX_LEASES 16        /* devices of one process with a lease of their own */
#define XSW_HINT_BYTES_4 192     /* size of struct xsw_hint in version 4 */
#define XSW_HINT_ALL_4 8191      /* XSW_HINT_ALL in version 4 */
#define XSW_QUEUE_ALL 0xffffffff /* hint for the whole process */
#define XSW_PRIORITY_MIN (-256)  /* -256: never run */
#define XSW_PRIORITY_MAX 255

/* The engine writes the heartbeat at least once per period. A client without a heartbeat for the
 * limit runs natively until the next one. */
#define XSW_HEARTBEAT_PERIOD_NS 20000000
#define XSW_HEARTBEAT_LIMIT_NS 100000000

/* ---- shared page ------------------------------------------------------- */

enum xsw_gate {
  XSW_GATE_OPEN = 0, /* zero, so that a zeroed page holds no launch */
  XSW_GATE_HELD = 1,
  XSW_GATE_BATCH = 2, /* launches gather on the device; version 5 */
};
/* With XSW_GATE_BATCH, the gate has from this bit on how many launches gather; 0: as many as the shim likes. */
#define XSW_BURST_SHIFT 8
#define XSW_BURST_MAX 65535

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

  /* line 1: liveness and shared lease, daemon. The shared lease covers the devices that have no
   * entry in struct xsw_leases: all of them in version 4, those beyond XSW_MAX_LEASES since. */
  uint64_t heartbeat_ns;      /* written by the engine loop itself */
  uint64_t lease_epoch;       /* identifies the newest suspension; 0: none yet */
  uint64_t lease_deadline_ns; /* 0: nothing suspended; the client resumes after this time */
  /* Bytes that the process may allocate on each device, since version 5. 0: not decided yet;
   * XSW_MEMORY_NO_QUOTA: no quota. The last value stays in force when the session ends. */
  uint64_t memory_quota;
  uint64_t memory_movable; /* 1: memory that is allocated from now on is movable; version 5 */
  uint32_t memory_orders;  /* counts changes of struct xsw_memory_order; also a futex word */
  uint32_t _rsv1a;
  uint64_t _rsv1[2];

  /* line 2: recovery of the whole process, from silence or the shared lease's end; client */
  uint64_t recovered_epoch;  /* every suspension up to this lease is undone */
  uint64_t recoveries;       /* number of recoveries */
  uint64_t lease_recoveries; /* number of recoveries of single devices; version 5 */
  /* Signs of life, since version 5; 0: none yet. The helper steps several times a second, the watcher
   * while a queue is busy. */
  uint64_t helper_ns;
  uint64_t watcher_ns;
  uint64_t _rsv2[3];

  /* line 3: counters, client; published on idle changes, helper ticks and exit */
  uint64_t hooked_calls; /* every intercepted driver call */
  uint64_t launches;     /* kernel and graph launches the driver accepted */
  uint64_t copies;       /* copies and memsets the driver accepted */
  uint64_t syncs;        /* synchronisations that returned */
  uint64_t captured;     /* launches into a capturing stream, which are not work */
  uint64_t gate_waits;   /* launches held at the gate */
  uint64_t gate_wait_ns; /* total hold time */
  uint64_t unhooked;     /* names of submitting entry points looked up that are not hooked */

  uint64_t queue_count; /* queues[0 .. queue_count) were used at least once */
  uint64_t _rsv3[7];
};

/* A finished request that the program marked. */
struct xsw_request {
  uint64_t sequence; /* 1, 2, ...; 0 while being written */
  uint64_t begin_ns;
  uint64_t end_ns;
  uint32_t name; /* index into names */
  uint32_t _rsv;
};

/* At XSW_REQUESTS_OFFSET, client: marked requests. The ring holds the newest; requests overwritten
 * before the daemon reads them are only counted. */
struct xsw_requests {
  uint64_t begun;
  uint64_t finished; /* written after the ring */
  uint64_t untold;   /* dropped: too many concurrent requests or names */
  uint64_t _rsv[5];
  char names[XSW_REQUEST_NAMES_BYTES];       /* NUL-terminated each; never change */
  struct xsw_request ring[XSW_REQUEST_RING]; /* by (sequence - 1) % XSW_REQUEST_RING */
};

/* The lease of one device. The daemon assigns the device once, before the first epoch. */
struct xsw_lease {
  uint64_t epoch;        /* identifies the newest suspension; 0: none yet */
  uint64_t deadline_ns;  /* 0: nothing suspended; the client resumes the device after this time */
  uint32_t pci_domain;   /* as in struct xsw_queue */
  uint32_t pci_bus_slot; /* as in struct xsw_queue */
  uint64_t _rsv;
};

/* At XSW_LEASES_OFFSET, since version 5: leases of single devices. One device's hold neither extends
 * nor ends another's. */
struct xsw_leases {
  struct xsw_lease entries[XSW_MAX_LEASES];  /* daemon */
  uint64_t recovered_epochs[XSW_MAX_LEASES]; /* client: suspensions up to this epoch are undone */
};

enum xsw_queue_kind {
  XSW_QUEUE_CONTEXT = 0, /* all streams of a context without their own queue */
  XSW_QUEUE_STREAM = 1,  /* one stream; only Lv1 can control it individually */
};

/* What the daemon asks the client to report about a queue; version 5. */
enum xsw_tell {
  XSW_TELL_PROGRESS = 1, /* store launches on every launch */
  XSW_TELL_WAIT = 2,     /* ring the doorbell when waits increases */
  XSW_TELL_LAUNCH = 4,   /* with XSW_TELL_PROGRESS: ring the doorbell after every launch */
};

/* One schedulable queue: a context on a device, or a stream on request. */
struct xsw_queue {
  /* line 0: daemon. Every launch reads it, so the client writes none of it. */
  uint32_t gate;      /* enum xsw_gate; also the futex word a held launcher waits on */
  uint32_t in_flight; /* limit on launches in flight at Lv1; 0: none */
  uint32_t batch;     /* launches between two of our events under a limit */
  uint32_t quiet;     /* 1: no decision depends on this queue, so the client rings no doorbell. The
                         client writes transitions, then reads quiet; the daemon does the reverse.
                         Both are sequentially consistent, so no change is missed */
  uint32_t tell;      /* enum xsw_tell; version 5 */
  uint32_t _rsv0;
  uint64_t _rsv1[5];

  /* line 1: client */
  uint64_t transitions;  /* changes between idle and busy: odd = busy. One word, so that one read
                            shows the state and any missed change */
  uint64_t changed_ns;   /* time of the last transition */
  uint64_t generation;   /* 0: never used; odd: in use; even: destroyed */
  uint32_t pci_domain;   /* PCI address of the device, or XSW_NO_PCI_DOMAIN */
  uint32_t pci_bus_slot; /* bus << 8 | device << 3 | function; without PCI: the device's ordinal */
  int32_t priority;      /* of a stream, added to the process's; higher is more important */
  uint32_t kind;         /* enum xsw_queue_kind */
  uint64_t submitted;    /* work submitted, published with the counters */
  /* Signed total busy time. While busy, the start of the busy period is subtracted and the reader
   * adds the current time. One word, so that reads can't tear. */
  uint64_t busy_ns;
  /* When a thread last started to wait for this queue after submitting. The thread submits nothing
   * until the wait ends. Not maintained while the queue is quiet. */
  uint64_t fed_ns;
};

/* At XSW_PROGRESS_OFFSET, by the queue's index, since version 5; client. Line 1 of the queue is full. */
struct xsw_progress {
  uint64_t launches; /* kernels and graphs launched; no copies, no memsets. Exact when the queue is
                        idle. While it is busy: current with XSW_TELL_PROGRESS, an estimate if
                        several threads launch, else the value of the last idle transition */
  uint64_t waits;    /* times fed_ns was set: a thread began to wait after submitting. Not
                        maintained while the queue is quiet */
  uint64_t copies;   /* copies and memsets submitted, published with submitted */
  uint64_t bursts;   /* batches released to the device under XSW_GATE_BATCH */
  uint64_t _rsv[4];
};

/* Where the movable memory of a process on one device is. While it is not resident, every call that
 * may use it waits, whatever happens to the daemon. */
enum xsw_residency {
  XSW_RESIDENT = 0,  /* zero: on the device */
  XSW_DRAINING = 1,  /* calls wait until submitted work is over */
  XSW_LEAVING = 2,   /* copied to the host, then released */
  XSW_AWAY = 3,      /* a part or all of it is in host memory */
  XSW_RETURNING = 4, /* allocated at the same addresses, then copied back */
};

/* How the last move ended. */
enum xsw_move_result {
  XSW_MOVE_DONE = 0,
  XSW_MOVE_BUSY = 1,      /* submitted work did not end in time; resident */
  XSW_MOVE_CAPTURING = 2, /* a graph was being captured; resident */
  XSW_MOVE_HOST_FULL = 3, /* no host memory within the budget; as before */
  XSW_MOVE_NO_ROOM = 4,   /* the device has no room yet; the return is repeated */
  XSW_MOVE_FAILED = 5,    /* the driver refused a step; as before, or away with complete data */
  XSW_MOVE_NOTHING = 6,   /* no movable memory */
  XSW_MOVE_REFUSED = 7,   /* the process can't move: work that the shim does not see */
};

/* Why memory of a process is not movable. */
enum xsw_fixed {
  XSW_FIXED_NOT_ASKED = 0, /* allocated before, or without, movable memory */
  XSW_FIXED_SMALL = 1,
  XSW_FIXED_POOL = 2,
  XSW_FIXED_ARRAY = 3,
  XSW_FIXED_MANAGED = 4,
  XSW_FIXED_EXPORTED = 5, /* another process or device may use it */
  XSW_FIXED_REFUSED = 6,  /* the driver can't map it */
};

/* Memory that the process has allocated on one device; client. */
struct xsw_memory_device {
  /* line 0 */
  uint32_t pci_domain;   /* as in struct xsw_queue */
  uint32_t pci_bus_slot; /* as in struct xsw_queue */
  uint64_t known;        /* 1: this entry is used; written last */
  uint64_t used;         /* bytes, as the program asked for them, also those that are away */
  uint64_t refused;      /* allocations that would have exceeded the quota */
  uint64_t movable;      /* bytes of used that can leave the device */
  uint64_t away;         /* bytes of movable that are in host memory only */
  uint32_t residency;    /* enum xsw_residency */
  uint32_t result;       /* enum xsw_move_result of the last move */
  uint64_t order;        /* sequence of the newest order that was carried out or refused */
  /* line 1: what the process needs */
  uint64_t wanted;     /* bytes of an allocation that the device had no room for; 0: none waits */
  uint64_t wanted_ns;  /* since when; identifies the request */
  uint64_t waiting_ns; /* since when a call waits for memory that is not resident; 0: none does */
  uint64_t room;   /* free bytes of the device, as the driver said when wanted or away changed */
  uint64_t pinned; /* bytes of host memory that are ready for a move */
  uint64_t _rsv0[3];
  /* line 2: the current or the last move */
  uint64_t move_begun_ns;
  uint64_t move_ended_ns; /* less than move_begun_ns: in progress */
  uint64_t move_bytes;    /* to move */
  uint64_t moved;         /* of them, so far */
  uint64_t moves_out;     /* completed */
  uint64_t moves_back;
  uint64_t bytes_out; /* of all completed moves */
  uint64_t bytes_back;
  /* line 3: bytes that are not movable, by enum xsw_fixed */
  uint64_t fixed[XSW_MEMORY_FIXED];
};

enum xsw_memory_want {
  XSW_WANT_NOTHING = 0,
  XSW_WANT_OUT = 1,  /* at least bytes leave the device; 0: all that is movable */
  XSW_WANT_BACK = 2, /* everything returns, as soon as the device has room */
};

enum xsw_memory_verdict {
  XSW_VERDICT_NONE = 0,
  XSW_VERDICT_WAIT = 1, /* room is being made: try again until it suffices */
  XSW_VERDICT_FAIL = 2, /* there will be none: out of memory */
};

/* What the daemon wants of the memory on one device; daemon. Without a daemon nothing leaves, and what is
 * away returns as soon as there is room. */
struct xsw_memory_order {
  uint32_t pci_domain; /* as in struct xsw_queue */
  uint32_t pci_bus_slot;
  uint64_t sequence; /* identifies the order; written last. 0: none yet */
  uint32_t want;     /* enum xsw_memory_want */
  uint32_t verdict;  /* enum xsw_memory_verdict about the request that answered_ns identifies */
  uint64_t bytes;
  uint64_t host_bytes;  /* host memory that the process may pin for moves on this device */
  uint64_t answered_ns; /* wanted_ns of the request; written after verdict */
  uint64_t _rsv[2];
};

/* At XSW_MEMORY_OFFSET, since version 5. */
struct xsw_memory {
  struct xsw_memory_device devices[XSW_MEMORY_DEVICES]; /* client */
  struct xsw_memory_order orders[XSW_MEMORY_DEVICES];   /* daemon; by the device's entry */
};

/* ---- frames: one SOCK_SEQPACKET packet each ----------------------------- */

enum xsw_frame_type {
  XSW_FRAME_HELLO = 1,   /* client -> daemon, first */
  XSW_FRAME_WELCOME = 2, /* daemon -> client, with the page and doorbell fds */
  XSW_FRAME_REFUSED = 3, /* daemon -> client, then the daemon closes */
  XSW_FRAME_HINT = 4,    /* client -> daemon: changed hints */
  /* From XSW_FRAME_GROUP on: driver frames, in shim/driver/NAME/frames.h. */
};

/* Header of every frame, constant across versions so that they recognize each other. */
struct xsw_frame {
  uint32_t magic;
  uint32_t version;
  uint32_t type;  /* enum xsw_frame_type */
  uint32_t bytes; /* of the whole packet */
};

enum xsw_level {
  XSW_LEVEL_AUTO = 0, /* the highest level the device supports */
  XSW_LEVEL_BLOCK = 1,
  XSW_LEVEL_DEACTIVATE = 2,
  XSW_LEVEL_INTERRUPT = 3,
};

enum xsw_scheduler {
  XSW_SCHEDULER_APP = 1, /* the program itself; no session */
  XSW_SCHEDULER_LOCAL = 2,
  XSW_SCHEDULER_GLOBAL = 3,
};

/* struct xsw_hint and enum xsw_hint_field: hints of a process or one of its queues. An unset field
 * keeps its value; a field set to 0 returns to its default. */
#include "xsched/wire_hints_gen.h"

struct xsw_hello {
  struct xsw_frame frame;
  uint32_t pid;                    /* in the client's namespace, for display only */
  uint32_t scheduler;              /* enum xsw_scheduler */
  struct xsw_hint hint;            /* of the process */
  char policy[XSW_POLICY_BYTES];   /* requested from a private daemon; empty: none */
  char command[XSW_COMMAND_BYTES]; /* NUL-terminated, truncated */
};

struct xsw_hint_frame {
  struct xsw_frame frame;
  uint32_t queue; /* slot, or XSW_QUEUE_ALL */
  uint32_t _rsv;
  uint64_t generation; /* of the slot, so that a late hint can't reach the slot's next queue */
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
  char reason[XSW_REASON_BYTES]; /* one line: cause and remedy */
};

/* ---- both sides agree ---------------------------------------------------- */

_Static_assert(sizeof(struct xsw_header) == 5 * 64, "header is five cache lines");
_Static_assert(sizeof(struct xsw_header) <= XSW_REQUESTS_OFFSET, "header ends before the requests");
_Static_assert(sizeof(struct xsw_requests) <= XSW_HEADER_BYTES - XSW_REQUESTS_OFFSET, "requests");
_Static_assert(sizeof(struct xsw_requests) + XSW_REQUESTS_OFFSET <= XSW_LEASES_OFFSET, "leases");
_Static_assert(sizeof(struct xsw_leases) <= XSW_HEADER_BYTES - XSW_LEASES_OFFSET, "leases");
_Static_assert(sizeof(struct xsw_hint) >= XSW_HINT_BYTES_4, "a hint only grows");
_Static_assert(XSW_REQUEST_NAMES_BYTES == XSW_REQUEST_NAMES * XSW_REQUEST_NAME_BYTES, "names");
_Static_assert(sizeof(struct xsw_hint) % 8 == 0, "a hint can be nested");
_Static_assert(sizeof(struct xsw_queue) == XSW_QUEUE_BYTES, "a queue is two cache lines");
_Static_assert(sizeof(struct xsw_progress) == XSW_PROGRESS_BYTES, "progress is a cache line");
_Static_assert(XSW_PAGE_BYTES_4 == XSW_HEADER_BYTES + XSW_MAX_QUEUES * XSW_QUEUE_BYTES, "queues");
_Static_assert(XSW_PAGE_BYTES_4 % 4096 == 0, "a page of version 4 replaces whole pages of memory");
_Static_assert(XSW_PROGRESS_OFFSET == XSW_PAGE_BYTES_4, "progress follows the queues");
_Static_assert(XSW_MEMORY_OFFSET == XSW_PROGRESS_OFFSET + XSW_MAX_QUEUES * XSW_PROGRESS_BYTES, "");
_Static_assert(sizeof(struct xsw_memory_device) == 4 * 64, "memory is four cache lines");
_Static_assert(sizeof(struct xsw_memory_order) == 64, "an order is a cache line");
_Static_assert(sizeof(struct xsw_memory) <= XSW_PAGE_BYTES - XSW_MEMORY_OFFSET, "page");
_Static_assert(sizeof(struct xsw_frame) == 16, "frame header never changes");
_Static_assert(sizeof(struct xsw_refused) == 216, "REFUSED never changes");
_Static_assert(sizeof(struct xsw_hello) <= XSW_FRAME_MAX_BYTES, "hello fits a packet");

#endif /* XSCHED_WIRE_H */
