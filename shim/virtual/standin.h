/* SPDX-License-Identifier: Apache-2.0
 *
 * Internals of the stand-in libcuda.so.1, a CUDA driver library for the virtual GPU. Like the real
 * library, it uses the device only through open, ioctl and mmap, with the same sequence of RM
 * requests. Observers of these calls see the same as on hardware.
 *
 * One lock (vg_lock) guards all state; no thread holds it while waiting for the device. A launch that
 * waits for room in a channel keeps its context to itself meanwhile, as the real library does: every other
 * call on that context waits for it, for as long as the channel is stopped.
 */
#ifndef XSCHED_VIRTUAL_STANDIN_H
#define XSCHED_VIRTUAL_STANDIN_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vgpu.h"

#define VG_EXPORT __attribute__((visibility("default")))
#define VG_DRIVER_VERSION 13000
#define VG_MAX_DEVICES 64
#define VG_MAX_CONTEXTS 512
#define VG_DEVICE_BASE 0x600000000000ull /* device addresses: base + context << 35 | offset */
#define VG_ADDRESS_BITS 35
#define VG_MAPPED_BASE 0x700000000000ull /* behind those of all contexts: reserved address ranges */
#define VG_MAPPED_END 0x780000000000ull
#define VG_GRANULARITY (2ull << 20) /* of device memory */
#define VG_BAD_ADDRESS (1ull << 62) /* an offset that the device rejects, like a real one */
#define VG_STAGING_SLOTS 16
#define VG_STAGING_BYTES (1u << 20)
#define VG_STAMP_COUNT (1u << 17)
#define VG_HEAP_START ((uint64_t)VG_STAGING_SLOTS * VG_STAGING_BYTES + VG_STAMP_COUNT * 8ull)
#define VG_THREAD_STREAMS 64

/* From cuda.h: CUresult. */
typedef enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_ILLEGAL_STATE = 401,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
  CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
  CUDA_ERROR_UNKNOWN = 999,
} CUresult;

typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct vg_context *CUcontext;
typedef struct vg_stream *CUstream;
typedef struct vg_event *CUevent;
typedef struct vg_module *CUmodule;
typedef struct vg_function *CUfunction;
typedef struct vg_graph *CUgraph;
typedef struct vg_graph *CUgraphExec;

#define CU_STREAM_LEGACY ((CUstream)1)
#define CU_STREAM_PER_THREAD ((CUstream)2)
#define CU_STREAM_NON_BLOCKING 1
enum { CAPTURE_GLOBAL = 0, CAPTURE_THREAD_LOCAL = 1, CAPTURE_RELAXED = 2 };
enum { CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1, CAPTURE_INVALIDATED = 2 };

#define MAGIC_CONTEXT 0x43545856
#define MAGIC_STREAM 0x53545256
#define MAGIC_EVENT 0x45564e56
#define MAGIC_MODULE 0x4d4f4456
#define MAGIC_FUNCTION 0x464e4356
#define MAGIC_GRAPH 0x47524656
#define MAGIC_EXEC 0x47584556

/* A node of a graph, or one operation on a stream. */
struct vg_node {
  struct vg_entry entry; /* op VG_KERNEL, VG_COPY or VG_FILL */
  const void *host_src;  /* copies from and to pageable memory go through staging */
  void *host_dst;
  CUdeviceptr mapped_dst, mapped_src; /* where this is now is decided when the node is executed */
};

/* A capture: the graph being recorded and the participating streams. */
struct vg_graph {
  uint32_t magic;
  struct vg_node *nodes;
  size_t count, room;
  uint64_t id; /* of this use of the pooled struct */
  /* during the capture: */
  int mode, status;
  CUstream origin;
  uint64_t thread;
  struct vg_graph *next_capture;
};

struct vg_stream {
  uint32_t magic;
  CUcontext context;
  uint32_t channel;
  uint32_t flags;
  int priority;
  uint64_t id;
  bool legacy, created;
  uint64_t seq; /* of its newest work, on its channel */
  CUgraph capture;
  uint64_t capture_ops, capture_joined; /* recorded here; joined by another stream */
  CUstream next;                        /* of the context, or of the pool of free ones */
};

struct vg_event {
  uint32_t magic;
  CUcontext context;
  uint32_t flags;
  bool recorded;
  uint32_t channel;
  uint64_t seq;
  uint32_t stamp;  /* timestamp slot; VG_STAMP_COUNT: none */
  CUgraph capture; /* last recorded into this capture, if the id still matches */
  uint64_t capture_id;
  CUstream capture_stream;
  uint64_t capture_op;
  CUevent next;
};

struct vg_stamp {
  uint32_t next, channel;
  uint64_t seq; /* reusable once this has completed */
};

struct vg_block {
  uint64_t offset, bytes;
  bool used, host;
  uint64_t ticket; /* of device memory; 0: host memory, or a part of the small blocks' */
  struct vg_block *next;
};

struct vg_context {
  uint32_t magic;
  uint32_t index;
  CUdevice device;
  bool primary;
  uint32_t flags;
  uint32_t group, copy_groups[3];
  unsigned char *control, *vram;
  uint64_t vram_bytes;
  uint32_t number; /* for other contexts of the device; 0: they can't access its memory */
  int doorbell;
  uint32_t channels;
  uint64_t put[VG_CHANNELS];
  uint64_t blocking[VG_CHANNELS];      /* newest work of a blocking stream */
  uint64_t legacy_waited[VG_CHANNELS]; /* per channel: waited for by the legacy stream */
  uint64_t waited_legacy[VG_CHANNELS]; /* per channel: work of the legacy stream waited for */
  struct vg_stream legacy, threads[VG_THREAD_STREAMS];
  CUstream streams;
  uint64_t stream_count;
  struct vg_block *blocks;
  uint64_t small_bytes; /* in small blocks; they share device memory */
  uint64_t *small_tickets;
  size_t small_count, small_room;
  uint64_t staging_seq[VG_STAGING_SLOTS];
  uint32_t staging_channel[VG_STAGING_SLOTS], staging_next;
  bool staging_busy[VG_STAGING_SLOTS]; /* being read out */
  struct vg_stamp *stamps;
  uint32_t stamp_free, stamp_fresh;
  CUresult broken;
  uint32_t crowded; /* threads that wait for room in a channel */
};

/* Defines NAME and NAME<suffix>: in the first form stream 0 is the legacy stream, in the second the
 * per-thread stream. */
#define VG_BOTH(name, suffix, implementation, parameters, ...)                                     \
  VG_EXPORT CUresult name parameters { return implementation(false, __VA_ARGS__); }                \
  VG_EXPORT CUresult name##suffix parameters { return implementation(true, __VA_ARGS__); }

/* cuda_state.c */
extern pthread_mutex_t vg_lock;
extern pthread_cond_t vg_room; /* a context is not crowded any more */
uint64_t vg_thread_id(void);
int *vg_thread_capture_mode(void);
CUresult vg_ready(void); /* initialised, and not a forked child */
CUcontext vg_current(void);
CUresult vg_enter(CUcontext *context); /* ready and with a current context; takes the lock */
static inline CUresult vg_leave(CUresult result) {
  pthread_mutex_unlock(&vg_lock);
  return result;
}
int vg_device_count(void);
int vg_device_ordinal(CUdevice device); /* the kernel's number; -1: no such device */
CUcontext vg_context_at(uint32_t index);

/* cuda_rm.c: the requests that create a context (HIP: hip_kfd.c) */
extern const bool
    vg_small_by_compute; /* small copies to the device go through the compute channel */
extern const char vg_container_variable[];       /* of the vendor's container runtime */
extern const char *const vg_visible_variables[]; /* select and order devices, one after the other */
int vg_rm_open(void);
int vg_rm_device_exists(uint32_t ordinal);
CUresult vg_rm_create(CUcontext context, uint32_t ordinal);
void vg_rm_destroy(CUcontext context);
bool vg_rm_alive(void);
/* Device memory: a ticket for some bytes is given back, or ends with the context. */
CUresult vg_rm_take(CUcontext context, uint64_t bytes, uint64_t *ticket);
void vg_rm_give(CUcontext context, uint64_t ticket);
/* May this step (enum vg_memory_op) proceed? Returns when it is over. */
CUresult vg_rm_step(CUcontext context, uint32_t op, uint64_t bytes);
CUresult vg_rm_room(uint32_t ordinal, uint64_t *free_bytes, uint64_t *total);

/* cuda_ring.c (HIP: hip_kfd.c): channels */
uint32_t vg_pick_channel(CUcontext context,
                         int *priority); /* for a new stream; bounds the priority */
CUresult vg_append(CUcontext context, uint32_t channel, const struct vg_entry *entry);
void vg_kick(CUcontext context);
uint64_t vg_done(CUcontext context, uint32_t channel);
CUresult vg_check(CUcontext context);
CUresult vg_wait(CUcontext context, uint32_t channel, uint64_t seq); /* drops the lock */

/* cuda_submit.c */
CUresult vg_submit(CUstream stream, const struct vg_entry *entry, uint64_t *seq);
CUresult vg_wait_all(CUcontext context);
CUresult vg_perform(CUstream stream, const struct vg_node *node);

/* cuda_stream.c */
CUresult vg_stream(CUcontext context, CUstream handle, bool per_thread, CUstream *stream);
void vg_streams_init(CUcontext context);

/* cuda_memory.c */
bool vg_offset(CUcontext context, CUdeviceptr address, uint64_t bytes, uint64_t *offset);
void vg_memory_destroy(CUcontext context);
CUresult vg_heap_take(CUcontext context, uint64_t bytes, bool host, uint64_t *offset);
CUresult vg_heap_give(CUcontext context, uint64_t offset);

/* cuda_pinned.c: host memory of the program that the device shares */
bool vg_pinned(CUcontext context, uintptr_t address, uint64_t bytes, uint64_t *offset);
void vg_pinned_destroy(CUcontext context);

/* cuda_vmm.c */
static inline bool vg_is_mapped(CUdeviceptr address) {
  return address >= VG_MAPPED_BASE && address < VG_MAPPED_END;
}
/* The offset of a mapped address that the context can access, and how many bytes follow it there. */
bool vg_mapped(CUcontext context, CUdeviceptr address, uint64_t *offset, uint64_t *bytes);
/* The newest work on a channel uses the mapping at an address. */
void vg_mapped_used(CUcontext context, CUdeviceptr address, uint32_t channel);
CUresult vg_mapped_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr address);
void vg_vmm_destroy(CUcontext context);

/* cuda_graph.c */
CUresult vg_unsafe_call(void); /* a call that a capture elsewhere may forbid */
CUresult vg_capture_break(CUstream stream);
CUresult vg_capture_add(CUgraph graph, CUstream stream, const struct vg_node *node);
CUresult vg_capture_implicit(CUcontext context, CUstream stream);
bool vg_capture_blocks_legacy(CUcontext context, bool spoil);

#endif /* XSCHED_VIRTUAL_STANDIN_H */
