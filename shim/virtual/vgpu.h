/* SPDX-License-Identifier: Apache-2.0
 *
 * Interface between the stand-in libcuda.so.1 and the virtual GPU's device process: the submission
 * memory of a context and the private ioctl that maps it. internal/virtual/nvidia/area.go is the
 * other side; a Go test compares the constants.
 */
#ifndef XSCHED_VIRTUAL_VGPU_H
#define XSCHED_VIRTUAL_VGPU_H

#include <stdint.h>

#define VG_IOCTL_MAGIC 0x4F494756 /* "VGIO" */
#define VG_MAX_ARG 64
#define VG_MAX_PARAMS 4096
#define VG_ESC_MAP 0xE0
#define VG_ESC_MEMORY 0xE1
#define VG_AREA_MAGIC 0x41414756 /* "VGAA" */
#define VG_CHANNELS 8            /* compute channels per context */
#define VG_RING 1024             /* entries per channel */
#define VG_HEADER_BYTES 4096
#define VG_CHANNEL_BYTES 69632 /* VG_HEADER_BYTES + VG_RING * VG_ENTRY_BYTES */
#define VG_ENTRY_BYTES 64
#define VG_BLOCK_NS 10000 /* granularity of a kernel's work */
#define VG_NO_ADDRESS 0xFFFFFFFFFFFFFFFFull
#define VG_NUMBER_SHIFT 44 /* of an offset: whose memory; 0: that of the context itself */

struct vg_request {
  uint32_t magic;
  uint32_t request;
  uint32_t arg_bytes;
  uint32_t params_bytes;
};

struct vg_reply {
  int32_t error; /* 0, or a positive errno */
  uint32_t arg_bytes;
  uint32_t params_bytes;
  uint32_t _rsv;
};

/* VG_ESC_MAP: the memory of a compute channel group. */
struct vg_map {
  uint32_t client;
  uint32_t group;
  uint32_t copy_groups[3]; /* to the device, from it, inside it */
  uint32_t device;         /* out from here on */
  uint32_t channels;
  uint32_t number; /* of the memory, among those of the file; from 1 */
  uint64_t vram_bytes;
  int32_t control_fd; /* the reply carries the three descriptors */
  int32_t vram_fd;
  int32_t doorbell_fd;
  uint32_t status;
  uint64_t _rsv1;
};

#define VG_ASK_OFFSET                                                                              \
  12 /* in the control memory: not 0: ask before a copy from or to registered memory */

/* VG_ESC_MEMORY: device memory of a context, given back at its end at the latest; and steps with it, which may
 * fail on request. */
enum vg_memory_op {
  VG_MEMORY_INFO = 0,
  VG_MEMORY_TAKE = 1,
  VG_MEMORY_GIVE = 2,
  VG_MEMORY_MAP = 3,
  VG_MEMORY_UNMAP = 4,
  VG_MEMORY_PIN = 5,
  VG_MEMORY_COPY = 6,
  VG_MEMORY_MISSED = 7, /* a kernel or a copy accesses an address that is not mapped: counted */
  VG_MEMORY_TORN = 8,   /* submitted work uses memory that is unmapped: counted */
};

struct vg_memory {
  uint32_t client;
  uint32_t group;
  uint32_t op;
  uint32_t device; /* of VG_MEMORY_INFO; else that of the group */
  uint64_t bytes;
  uint64_t free; /* out from here on */
  uint64_t total;
  uint32_t status;
  uint32_t _rsv;
  uint64_t takes_ns; /* how long the step takes at least */
  uint64_t _rsv1;
};

/* One entry of a channel's ring; written by the client, read once by the device. */
enum vg_op { VG_KERNEL = 1, VG_COPY = 2, VG_FILL = 3, VG_WAIT = 4, VG_MARK = 5, VG_VALUE = 6 };

struct vg_entry {
  uint32_t op;
  uint32_t width; /* of a fill: 1, 2 or 4 */
  uint64_t submit_ns;
  uint64_t amount; /* kernel: device time in ns; copy, fill: bytes */
  uint64_t
      dst; /* VRAM offset; kernel: its result, mark: its time; or VG_NO_ADDRESS; value: its word */
  uint64_t src;
  uint32_t value; /* kernel: seed; fill: value; value: what to wait for */
  uint32_t lane;  /* copy, fill: index into copy_groups; 3: a small copy by the compute engine */
  uint32_t wait_channel;
  uint32_t _rsv;
  uint64_t wait_seq;
};

/* Head of a channel's block in the control memory; its ring follows at VG_HEADER_BYTES.
 * Entry of sequence s (from 1) is in slot (s - 1) % VG_RING. */
struct vg_channel {
  uint64_t put;     /* client: entries written so far */
  uint32_t waiters; /* client: threads that wait for done */
  uint32_t _rsv0[13];
  uint64_t done;   /* device: entries completed */
  uint32_t done32; /* device: low half of it, the futex word */
  uint32_t error;  /* device: not 0 after an invalid submission; the channel is dead */
  uint32_t _rsv1[12];
};

_Static_assert(sizeof(struct vg_entry) == VG_ENTRY_BYTES, "entry size");
_Static_assert(sizeof(struct vg_channel) == 128, "two cache lines");
_Static_assert(sizeof(struct vg_memory) == VG_MAX_ARG, "memory argument");
_Static_assert(sizeof(struct vg_map) == VG_MAX_ARG, "map argument");
_Static_assert(VG_CHANNEL_BYTES == VG_HEADER_BYTES + VG_RING * VG_ENTRY_BYTES, "channel size");

/* Effect of block b of a kernel on its result word. */
static inline uint64_t vg_fold(uint64_t word, uint32_t seed, uint32_t b) {
  word ^= (uint64_t)seed << 32 | b;
  word = word << 23 | word >> 41;
  return word * 0x9E3779B97F4A7C15ull + 1;
}

#endif /* XSCHED_VIRTUAL_VGPU_H */
