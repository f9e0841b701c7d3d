/* SPDX-License-Identifier: Apache-2.0
 *
 * Stream ordering, independent of the implementation of channels.
 */
#include <string.h>

#include "standin.h"

CUresult vg_wait_all(CUcontext context) {
  uint64_t seqs[VG_CHANNELS];
  memcpy(seqs, context->put, sizeof seqs); /* wait only for work submitted before */
  CUresult result = vg_check(context);
  for (uint32_t i = 0; i < context->channels && result == CUDA_SUCCESS; i++)
    result = vg_wait(context, i, seqs[i]);
  return result == CUDA_SUCCESS ? vg_check(context) : result;
}

static CUresult append_wait(CUcontext context, uint32_t channel, uint32_t on, uint64_t seq) {
  struct vg_entry wait = {.op = VG_WAIT, .wait_channel = on, .wait_seq = seq, .dst = VG_NO_ADDRESS};
  return vg_append(context, channel, &wait);
}

/* The legacy stream and all blocking streams wait for each other. */
static CUresult order_with_legacy(CUstream stream) {
  CUcontext context = stream->context;
  uint32_t home = context->legacy.channel;
  if (stream->legacy) {
    for (uint32_t i = 0; i < context->channels; i++) {
      uint64_t seq = context->blocking[i];
      if (i == home || seq <= context->legacy_waited[i] || seq <= vg_done(context, i)) continue;
      CUresult result = append_wait(context, home, i, seq);
      if (result != CUDA_SUCCESS) return result;
      context->legacy_waited[i] = seq;
    }
  } else if (!(stream->flags & CU_STREAM_NON_BLOCKING)) {
    uint64_t seq = context->legacy.seq;
    if (stream->channel == home || seq <= context->waited_legacy[stream->channel] ||
        seq <= vg_done(context, home))
      return CUDA_SUCCESS;
    CUresult result = append_wait(context, stream->channel, home, seq);
    if (result != CUDA_SUCCESS) return result;
    context->waited_legacy[stream->channel] = seq;
  }
  return CUDA_SUCCESS;
}

/* Appends one entry to a stream; seq identifies its completion. The caller kicks. */
CUresult vg_submit(CUstream stream, const struct vg_entry *entry, uint64_t *seq) {
  CUcontext context = stream->context;
  CUresult result = order_with_legacy(stream);
  if (result == CUDA_SUCCESS) result = vg_append(context, stream->channel, entry);
  if (result != CUDA_SUCCESS) return result;
  stream->seq = context->put[stream->channel];
  if (!stream->legacy && !(stream->flags & CU_STREAM_NON_BLOCKING))
    context->blocking[stream->channel] = stream->seq;
  if (seq) *seq = stream->seq;
  return CUDA_SUCCESS;
}

/* Returns a free slot of the staging memory. */
static CUresult take_slot(CUcontext context, uint32_t *slot) {
  do
    *slot = context->staging_next++ % VG_STAGING_SLOTS;
  while (context->staging_busy[*slot]);
  return vg_wait(context, context->staging_channel[*slot], context->staging_seq[*slot]);
}

/* Copies from or to memory without device access, in pieces. */
static CUresult perform_staged(CUstream stream, const struct vg_node *node) {
  CUcontext context = stream->context;
  struct vg_entry entry = node->entry;
  for (uint64_t at = 0; at < node->entry.amount; at += VG_STAGING_BYTES) {
    uint32_t slot;
    CUresult result = take_slot(context, &slot);
    if (result != CUDA_SUCCESS) return result;
    uint64_t staging = (uint64_t)slot * VG_STAGING_BYTES;
    uint64_t left = node->entry.amount - at;
    entry.amount = left < VG_STAGING_BYTES ? left : VG_STAGING_BYTES;
    if (node->host_src) {
      memcpy(context->vram + staging, (const unsigned char *)node->host_src + at, entry.amount);
      entry.src = staging;
      entry.dst = node->entry.dst + at;
    } else {
      entry.src = node->entry.src + at;
      entry.dst = staging;
    }
    result = vg_submit(stream, &entry, &context->staging_seq[slot]);
    if (result != CUDA_SUCCESS) return result;
    context->staging_channel[slot] = stream->channel;
    if (!node->host_dst) continue;
    vg_kick(context);
    context->staging_busy[slot] = true;
    result = vg_wait(context, stream->channel, context->staging_seq[slot]);
    context->staging_busy[slot] = false;
    if (result != CUDA_SUCCESS) return result;
    memcpy((unsigned char *)node->host_dst + at, context->vram + staging, entry.amount);
  }
  vg_kick(context);
  return CUDA_SUCCESS;
}

static CUresult perform(CUstream stream, const struct vg_node *node) {
  if (node->host_src || node->host_dst) return perform_staged(stream, node);
  CUresult result = vg_submit(stream, &node->entry, NULL);
  vg_kick(stream->context);
  return result;
}

/* The part of a copy or a fill from at on that is in one piece of memory. */
static bool piece_at(CUcontext context, const struct vg_node *node, uint64_t at,
                     struct vg_node *piece) {
  uint64_t room;
  *piece = *node;
  piece->entry.amount = node->entry.amount - at;
  piece->entry.dst += at, piece->entry.src += at;
  if (piece->host_src) piece->host_src = (const unsigned char *)node->host_src + at;
  if (piece->host_dst) piece->host_dst = (unsigned char *)node->host_dst + at;
  if (node->mapped_dst) {
    if (!vg_mapped(context, node->mapped_dst + at, &piece->entry.dst, &room)) return false;
    if (room < piece->entry.amount) piece->entry.amount = room;
  }
  if (node->mapped_src) {
    if (!vg_mapped(context, node->mapped_src + at, &piece->entry.src, &room)) return false;
    if (room < piece->entry.amount) piece->entry.amount = room;
  }
  return true;
}

/* Performs a part that is in one piece of memory, and notes that it uses that piece. */
static CUresult perform_piece(CUstream stream, const struct vg_node *node, uint64_t at) {
  CUcontext context = stream->context;
  CUresult result = perform(stream, node);
  if (result != CUDA_SUCCESS) return result;
  if (node->mapped_dst) vg_mapped_used(context, node->mapped_dst + at, stream->channel);
  if (node->mapped_src) vg_mapped_used(context, node->mapped_src + at, stream->channel);
  return result;
}

/* A kernel with a bad address fails on the device, a copy before anything is copied. The device counts both. */
static CUresult perform_mapped(CUstream stream, const struct vg_node *node) {
  CUcontext context = stream->context;
  struct vg_node piece = *node;
  uint64_t room;
  CUresult result = vg_check(context);
  if (result != CUDA_SUCCESS) return result;
  if (node->entry.op == VG_KERNEL) {
    if (vg_mapped(context, node->mapped_dst, &piece.entry.dst, &room) && room >= 16)
      return perform_piece(stream, &piece, 0);
    (void)vg_rm_step(context, VG_MEMORY_MISSED, 16);
    piece.entry.dst = VG_BAD_ADDRESS;
    return perform(stream, &piece);
  }
  for (uint64_t at = 0; at < node->entry.amount; at += piece.entry.amount)
    if (!piece_at(context, node, at, &piece)) {
      (void)vg_rm_step(context, VG_MEMORY_MISSED, node->entry.amount);
      return CUDA_ERROR_INVALID_VALUE;
    }
  for (uint64_t at = 0; at < node->entry.amount && result == CUDA_SUCCESS; at += piece.entry.amount)
    result = piece_at(context, node, at, &piece) ? perform_piece(stream, &piece, at)
                                                 : CUDA_ERROR_ILLEGAL_ADDRESS;
  return result;
}

/* Executes one node on a stream, or records it. */
CUresult vg_perform(CUstream stream, const struct vg_node *node) {
  if (stream->capture) return vg_capture_add(stream->capture, stream, node);
  CUresult result = vg_capture_implicit(stream->context, stream);
  if (result != CUDA_SUCCESS) return result;
  return node->mapped_dst || node->mapped_src ? perform_mapped(stream, node)
                                              : perform(stream, node);
}
