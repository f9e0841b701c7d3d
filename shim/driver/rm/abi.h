/* SPDX-License-Identifier: Apache-2.0
 *
 * The binary interface of NVIDIA's resource manager, as far as the library reads or the virtual GPU
 * speaks it: structures at the driver's own offsets. The Go side compares its copies
 * with every published branch (internal/driver/nvidia/abi).
 */
#ifndef XSCHED_RM_ABI_H
#define XSCHED_RM_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* From ctrl2080gpu.h: domain << 16 | bus << 8 | device. */
#define NV2080_CTRL_CMD_GPU_GET_ID 0x20800142u

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

#endif /* XSCHED_RM_ABI_H */
