/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory: a first-fit heap in the VRAM shared with the device, copies and fills. Pinned host memory
 * is part of it, so that the device can access it. Other host memory goes through staging.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "standin.h"

#define ALIGNMENT 512u
#define HOST_PAGE 4096u
enum { LANE_TO_DEVICE, LANE_TO_HOST, LANE_INSIDE, LANE_COMPUTE };
enum { MEMORY_TYPE = 2, TYPE_HOST = 1, TYPE_DEVICE = 2 }; /* from cuda.h */

static CUdeviceptr address_of(CUcontext context, uint64_t offset) {
  return VG_DEVICE_BASE + ((uint64_t)context->index << VG_ADDRESS_BITS) + offset;
}

/* A device address, or the address of pinned memory, as an offset into the context's VRAM. */
bool vg_offset(CUcontext context, CUdeviceptr address, uint64_t bytes, uint64_t *offset) {
  uint64_t room;
  if (vg_is_mapped(address)) return vg_mapped(context, address, offset, &room) && bytes <= room;
  CUdeviceptr base = address_of(context, 0), host = (uintptr_t)context->vram;
  if (address >= base && address - base < context->vram_bytes)
    *offset = address - base;
  else if (address >= host && address - host < context->vram_bytes)
    *offset = address - host;
  else
    return false;
  return bytes <= context->vram_bytes - *offset;
}

/* Blocks of a megabyte and more have device memory of their own, as whole pages of 2 MiB. Smaller ones share it.
 * Which page a small block is in is not modelled. */
#define SMALL_BLOCK (1u << 20)

static uint64_t pages(uint64_t bytes) { return (bytes + VG_GRANULARITY - 1) / VG_GRANULARITY; }

static CUresult small_change(CUcontext context, uint64_t bytes) {
  while (context->small_count < pages(bytes)) {
    if (context->small_count == context->small_room) {
      size_t room = context->small_room ? 2 * context->small_room : 16;
      uint64_t *more = realloc(context->small_tickets, room * sizeof *more);
      if (!more) return CUDA_ERROR_OUT_OF_MEMORY;
      context->small_tickets = more;
      context->small_room = room;
    }
    CUresult result =
        vg_rm_take(context, VG_GRANULARITY, &context->small_tickets[context->small_count]);
    if (result != CUDA_SUCCESS) return result;
    context->small_count++;
  }
  while (context->small_count > pages(bytes))
    vg_rm_give(context, context->small_tickets[--context->small_count]);
  context->small_bytes = bytes;
  return CUDA_SUCCESS;
}

static CUresult device_take(CUcontext context, struct vg_block *block) {
  block->ticket = 0;
  if (block->host) return CUDA_SUCCESS;
  if (block->bytes < SMALL_BLOCK) return small_change(context, context->small_bytes + block->bytes);
  return vg_rm_take(context, pages(block->bytes) * VG_GRANULARITY, &block->ticket);
}

static void device_give(CUcontext context, struct vg_block *block) {
  if (block->ticket)
    vg_rm_give(context, block->ticket);
  else if (!block->host && block->bytes < SMALL_BLOCK)
    (void)small_change(context, context->small_bytes - block->bytes);
  block->ticket = 0;
}

static void give_block(CUcontext context, struct vg_block *block);

CUresult vg_heap_take(CUcontext context, uint64_t bytes, bool host, uint64_t *offset) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > context->vram_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (!context->blocks) {
    context->blocks = calloc(1, sizeof *context->blocks);
    if (!context->blocks) return CUDA_ERROR_OUT_OF_MEMORY;
    context->blocks->offset = VG_HEAP_START;
    context->blocks->bytes = context->vram_bytes - VG_HEAP_START;
  }
  struct vg_block *block = context->blocks;
  while (block && (block->used || block->bytes < bytes))
    block = block->next;
  if (!block) return CUDA_ERROR_OUT_OF_MEMORY;
  if (block->bytes > bytes) {
    struct vg_block *rest = malloc(sizeof *rest);
    if (!rest) return CUDA_ERROR_OUT_OF_MEMORY;
    *rest = (struct vg_block){
        .offset = block->offset + bytes, .bytes = block->bytes - bytes, .next = block->next};
    block->bytes = bytes;
    block->next = rest;
  }
  block->host = host;
  CUresult result = device_take(context, block);
  block->used = true;
  *offset = block->offset;
  if (result != CUDA_SUCCESS) give_block(context, block);
  return result;
}

static struct vg_block *find_block(CUcontext context, uint64_t offset) {
  struct vg_block *block = context->blocks;
  while (block && (block->offset > offset || offset - block->offset >= block->bytes))
    block = block->next;
  return block && block->used ? block : NULL;
}

/* What was in a large block is lost, and the host has its memory back. */
static void forget(CUcontext context, const struct vg_block *block) {
  uint64_t from = (block->offset + HOST_PAGE - 1) / HOST_PAGE * HOST_PAGE;
  uint64_t to = (block->offset + block->bytes) / HOST_PAGE * HOST_PAGE;
  if (block->bytes >= SMALL_BLOCK && to > from)
    (void)madvise(context->vram + from, to - from, MADV_REMOVE);
}

CUresult vg_heap_give(CUcontext context, uint64_t offset) {
  struct vg_block *block = find_block(context, offset);
  if (!block || block->offset != offset) return CUDA_ERROR_INVALID_VALUE;
  device_give(context, block);
  forget(context, block);
  give_block(context, block);
  return CUDA_SUCCESS;
}

static void give_block(CUcontext context, struct vg_block *block) {
  struct vg_block *before = NULL;
  for (struct vg_block *b = context->blocks; b != block; b = b->next)
    before = b;
  block->used = false;
  struct vg_block *next = block->next;
  if (next && !next->used) {
    block->bytes += next->bytes;
    block->next = next->next;
    free(next);
  }
  if (before && !before->used) {
    before->bytes += block->bytes;
    before->next = block->next;
    free(block);
  }
}

void vg_memory_destroy(CUcontext context) {
  while (context->blocks) {
    struct vg_block *next = context->blocks->next;
    free(context->blocks);
    context->blocks = next;
  }
  vg_pinned_destroy(context);
  free(context->small_tickets);
  context->small_tickets = NULL;
  free(context->stamps);
  context->stamps = NULL;
}

static CUresult allocate(uint64_t bytes, bool host, uint64_t *address) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!address) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  result = vg_unsafe_call();
  uint64_t offset;
  if (result == CUDA_SUCCESS) result = vg_heap_take(context, bytes, host, &offset);
  if (result == CUDA_SUCCESS)
    *address = host ? (uintptr_t)context->vram + offset : address_of(context, offset);
  return vg_leave(result);
}

VG_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
  return allocate(bytes, false, address);
}
VG_EXPORT CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes) {
  return allocate(bytes, false, address);
}
VG_EXPORT CUresult cuMemAllocHost_v2(void **address, size_t bytes) {
  return allocate(bytes, true, (uint64_t *)address);
}
VG_EXPORT CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned int flags) {
  (void)flags;
  return allocate(bytes, true, (uint64_t *)address);
}

/* Like the real driver, freeing waits for submitted work. */
static CUresult release(uint64_t address) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (address == 0) return vg_leave(CUDA_SUCCESS);
  if (vg_is_mapped(address)) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  uint64_t offset;
  for (uint32_t i = 0; !vg_offset(context, address, 0, &offset); i++) {
    if (i == VG_MAX_CONTEXTS) return vg_leave(CUDA_ERROR_INVALID_VALUE);
    CUcontext other = vg_context_at(i);
    if (other) context = other;
  }
  result = vg_unsafe_call();
  if (result == CUDA_SUCCESS) result = vg_wait_all(context);
  if (result == CUDA_SUCCESS) result = vg_heap_give(context, offset);
  return vg_leave(result);
}

VG_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) { return release(address); }
VG_EXPORT CUresult cuMemFree(CUdeviceptr address) { return release(address); }
VG_EXPORT CUresult cuMemFreeHost(void *address) { return release((uintptr_t)address); }

/* Rows are as far apart as an H200 puts them. */
VG_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width,
                                      size_t height, unsigned int element) {
  if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
    return CUDA_ERROR_INVALID_VALUE;
  if (width > UINT64_MAX / 2 / height) return CUDA_ERROR_OUT_OF_MEMORY;
  size_t row = (width + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  CUresult result = allocate(row * height, false, address);
  if (result == CUDA_SUCCESS) *pitch = row;
  return result;
}

/* The allocation precedes the stream's order, and the free follows all work: stricter than a pool. */
static CUresult allocate_async(bool per_thread, CUdeviceptr *address, size_t bytes,
                               CUstream stream) {
  (void)per_thread, (void)stream;
  return allocate(bytes, false, address);
}
static CUresult release_async(bool per_thread, CUdeviceptr address, CUstream stream) {
  (void)per_thread, (void)stream;
  return address ? release(address) : CUDA_ERROR_INVALID_VALUE;
}
VG_BOTH(cuMemAllocAsync, _ptsz, allocate_async,
        (CUdeviceptr * address, size_t bytes, CUstream stream), address, bytes, stream)
VG_BOTH(cuMemFreeAsync, _ptsz, release_async, (CUdeviceptr address, CUstream stream), address,
        stream)

VG_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  uint64_t offset;
  struct vg_block *block = NULL;
  for (uint32_t i = 0; !block && i < VG_MAX_CONTEXTS; i++) {
    context = vg_context_at(i);
    if (context && vg_offset(context, address, 0, &offset)) block = find_block(context, offset);
  }
  if (vg_is_mapped(address)) return vg_leave(vg_mapped_range(base, bytes, address));
  if (!block) return vg_leave(CUDA_ERROR_NOT_FOUND);
  if (base) *base = address - (offset - block->offset);
  if (bytes) *bytes = block->bytes;
  return vg_leave(CUDA_SUCCESS);
}

VG_EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  uint64_t room, all;
  result = vg_rm_room((uint32_t)vg_device_ordinal(context->device), &room, &all);
  if (result == CUDA_SUCCESS && free_bytes) *free_bytes = room;
  if (result == CUDA_SUCCESS && total) *total = all;
  return vg_leave(result);
}

#define SMALL 65536u
#define SMALL_PINNED 32767u

/* Up to 64 KB from the host: the real driver waits for the end (580). It documents that it returns at once:
 * XSCHED_VGPU_COPIES=documented. */
static bool small_waits(void) {
  const char *copies = getenv("XSCHED_VGPU_COPIES");
  return !copies || strcmp(copies, "documented") != 0;
}

/* A small copy goes through the compute channel, unless it is one of rows (H200, driver 580: docs/platforms/nvidia.md,
 * small uploads). What graphs do was not measured. */
static bool by_compute(CUstream stream, const struct vg_node *node, bool rows) {
  return vg_small_by_compute && !rows && !stream->capture && node->entry.lane == LANE_TO_DEVICE &&
         node->entry.amount <= (node->host_src ? SMALL : SMALL_PINNED);
}

/* One copy; host selects the side, if any, that may be host memory. A call that waits does so as the real
 * driver: to the host it waits for the end, inside the device not at all. From pageable memory it waits for
 * earlier work, and returns when the bytes are staged. */
static CUresult copy_part(bool per_thread, CUstream handle, uint64_t dst, uint64_t src,
                          size_t bytes, int lane, bool wait, bool rows) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  CUstream stream;
  result = vg_stream(context, handle, per_thread, &stream);
  if (result == CUDA_SUCCESS && wait) result = vg_unsafe_call();
  if (result != CUDA_SUCCESS || bytes == 0) return vg_leave(result);
  context = stream->context;
  struct vg_node node = {.entry = {.op = VG_COPY, .amount = bytes, .lane = (uint32_t)lane}};
  if (vg_is_mapped(dst)) node.mapped_dst = dst;
  if (vg_is_mapped(src)) node.mapped_src = src;
  bool dst_pinned = vg_pinned(context, dst, bytes, &node.entry.dst);
  bool src_pinned = vg_pinned(context, src, bytes, &node.entry.src);
  bool dst_here = dst_pinned || node.mapped_dst || vg_offset(context, dst, bytes, &node.entry.dst);
  bool src_here = src_pinned || node.mapped_src || vg_offset(context, src, bytes, &node.entry.src);
  if (!src_here && lane == LANE_TO_DEVICE)
    node.host_src = (const void *)(uintptr_t)src;
  else if (!src_here)
    return vg_leave(CUDA_ERROR_INVALID_VALUE);
  if (!dst_here && lane == LANE_TO_HOST)
    node.host_dst = (void *)(uintptr_t)dst;
  else if (!dst_here)
    return vg_leave(CUDA_ERROR_INVALID_VALUE);
  bool small = lane == LANE_TO_DEVICE && bytes <= SMALL;
  if (by_compute(stream, &node, rows)) node.entry.lane = LANE_COMPUTE;
  if (lane == LANE_INSIDE || (small && !small_waits())) wait = false;
  bool staged = node.host_src && !small;
  if (dst_pinned || src_pinned) result = vg_rm_step(context, VG_MEMORY_COPY, bytes);
  if (result == CUDA_SUCCESS && wait && staged)
    result = vg_wait(context, stream->channel, stream->seq);
  if (result == CUDA_SUCCESS) result = vg_perform(stream, &node);
  if (result == CUDA_SUCCESS && wait && !staged)
    result = vg_wait(context, stream->channel, stream->seq);
  return vg_leave(result);
}

static CUresult copy(bool per_thread, CUstream stream, uint64_t dst, uint64_t src, size_t bytes,
                     int lane, bool wait) {
  return copy_part(per_thread, stream, dst, src, bytes, lane, wait, false);
}

static CUresult to_device(bool per_thread, CUdeviceptr dst, const void *src, size_t bytes,
                          CUstream stream, bool wait) {
  return copy(per_thread, stream, dst, (uintptr_t)src, bytes, LANE_TO_DEVICE, wait);
}
static CUresult to_host(bool per_thread, void *dst, CUdeviceptr src, size_t bytes, CUstream stream,
                        bool wait) {
  return copy(per_thread, stream, (uintptr_t)dst, src, bytes, LANE_TO_HOST, wait);
}
static CUresult inside(bool per_thread, CUdeviceptr dst, CUdeviceptr src, size_t bytes,
                       CUstream stream, bool wait) {
  return copy(per_thread, stream, dst, src, bytes, LANE_INSIDE, wait);
}

VG_BOTH(cuMemcpyHtoD_v2, _ptds, to_device, (CUdeviceptr dst, const void *src, size_t bytes), dst,
        src, bytes, NULL, true)
VG_BOTH(cuMemcpyDtoH_v2, _ptds, to_host, (void *dst, CUdeviceptr src, size_t bytes), dst, src,
        bytes, NULL, true)
VG_BOTH(cuMemcpyDtoD_v2, _ptds, inside, (CUdeviceptr dst, CUdeviceptr src, size_t bytes), dst, src,
        bytes, NULL, true)
VG_BOTH(cuMemcpyHtoDAsync_v2, _ptsz, to_device,
        (CUdeviceptr dst, const void *src, size_t bytes, CUstream stream), dst, src, bytes, stream,
        false)
VG_BOTH(cuMemcpyDtoHAsync_v2, _ptsz, to_host,
        (void *dst, CUdeviceptr src, size_t bytes, CUstream stream), dst, src, bytes, stream, false)
VG_BOTH(cuMemcpyDtoDAsync_v2, _ptsz, inside,
        (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream), dst, src, bytes, stream,
        false)

/* Unified form: the addresses determine the device's side. */
static CUresult any(bool per_thread, CUdeviceptr dst, CUdeviceptr src, size_t bytes,
                    CUstream stream, bool wait) {
  bool dst_device = dst >= VG_DEVICE_BASE && dst < VG_MAPPED_END;
  bool src_device = src >= VG_DEVICE_BASE && src < VG_MAPPED_END;
  int lane = dst_device && src_device ? LANE_INSIDE : dst_device ? LANE_TO_DEVICE : LANE_TO_HOST;
  return copy(per_thread, stream, dst, src, bytes, lane, wait);
}
VG_BOTH(cuMemcpy, _ptds, any, (CUdeviceptr dst, CUdeviceptr src, size_t bytes), dst, src, bytes,
        NULL, true)
VG_BOTH(cuMemcpyAsync, _ptsz, any,
        (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream), dst, src, bytes, stream,
        false)

/* Of CUDA_MEMCPY2D. Only copies from linear memory of the host to the device. */
struct rows {
  size_t from_x, from_y;
  unsigned from_type;
  const unsigned char *from_host;
  CUdeviceptr from_device;
  void *from_array;
  size_t from_pitch, to_x, to_y;
  unsigned to_type;
  void *to_host;
  CUdeviceptr to_device;
  void *to_array;
  size_t to_pitch, width, height;
};

static CUresult copy_rows(bool per_thread, const struct rows *c, CUstream stream) {
  if (!c || c->from_type != TYPE_HOST || c->to_type != TYPE_DEVICE || c->from_x || c->from_y ||
      c->to_x || c->to_y)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = CUDA_SUCCESS;
  for (size_t y = 0; y < c->height && result == CUDA_SUCCESS; y++)
    result = copy_part(per_thread, stream, c->to_device + y * c->to_pitch,
                       (uintptr_t)c->from_host + y * c->from_pitch, c->width, LANE_TO_DEVICE, false,
                       true);
  return result;
}
VG_BOTH(cuMemcpy2DAsync_v2, _ptsz, copy_rows, (const struct rows *copy, CUstream stream), copy,
        stream)

/* Pageable memory is what no context knows. */
VG_EXPORT CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  if (!data || attribute != MEMORY_TYPE) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  result = CUDA_ERROR_INVALID_VALUE;
  if (vg_is_mapped(address) && vg_mapped_range(NULL, NULL, address) == CUDA_SUCCESS) {
    *(unsigned *)data = TYPE_DEVICE;
    result = CUDA_SUCCESS;
  }
  for (uint32_t i = 0; i < VG_MAX_CONTEXTS && result != CUDA_SUCCESS; i++) {
    uint64_t offset;
    context = vg_context_at(i);
    if (!context || !vg_offset(context, address, 0, &offset)) continue;
    *(unsigned *)data = address == address_of(context, offset) ? TYPE_DEVICE : TYPE_HOST;
    result = CUDA_SUCCESS;
  }
  return vg_leave(result);
}

static CUresult fill(bool per_thread, CUdeviceptr dst, uint32_t value, uint32_t width, size_t count,
                     CUstream handle) {
  CUcontext context;
  CUresult result = vg_enter(&context);
  if (result != CUDA_SUCCESS) return result;
  CUstream stream;
  result = vg_stream(context, handle, per_thread, &stream);
  if (result != CUDA_SUCCESS || count == 0) return vg_leave(result);
  struct vg_node node = {.entry = {.op = VG_FILL,
                                   .width = width,
                                   .amount = (uint64_t)count * width,
                                   .value = value,
                                   .lane = LANE_INSIDE}};
  if (vg_is_mapped(dst)) node.mapped_dst = dst;
  if (count > UINT64_MAX / 4 ||
      (!node.mapped_dst && !vg_offset(stream->context, dst, node.entry.amount, &node.entry.dst)))
    return vg_leave(CUDA_ERROR_INVALID_VALUE);
  return vg_leave(vg_perform(stream, &node));
}

VG_BOTH(cuMemsetD8_v2, _ptds, fill, (CUdeviceptr dst, unsigned char value, size_t count), dst,
        value, 1, count, NULL)
VG_BOTH(cuMemsetD16_v2, _ptds, fill, (CUdeviceptr dst, unsigned short value, size_t count), dst,
        value, 2, count, NULL)
VG_BOTH(cuMemsetD32_v2, _ptds, fill, (CUdeviceptr dst, unsigned int value, size_t count), dst,
        value, 4, count, NULL)
VG_BOTH(cuMemsetD8Async, _ptsz, fill,
        (CUdeviceptr dst, unsigned char value, size_t count, CUstream stream), dst, value, 1, count,
        stream)
VG_BOTH(cuMemsetD16Async, _ptsz, fill,
        (CUdeviceptr dst, unsigned short value, size_t count, CUstream stream), dst, value, 2,
        count, stream)
VG_BOTH(cuMemsetD32Async, _ptsz, fill,
        (CUdeviceptr dst, unsigned int value, size_t count, CUstream stream), dst, value, 4, count,
        stream)
