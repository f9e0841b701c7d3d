/* SPDX-License-Identifier: Apache-2.0
 *
 * Mapped memory: address ranges are reserved, memory is created, and each can outlive the other. The rules
 * are those of the real driver: whole pages of 2 MiB, a range is mapped once, a mapping goes as a whole, and
 * nothing is accessible before its access is set. All contexts of the device can access it. Unlike there, memory
 * ends with the context that was current when it was created.
 */
#include <stdlib.h>
#include <string.h>

#include "standin.h"

enum { TYPE_PINNED = 1, LOCATION_DEVICE = 1, ACCESS_READ = 1, ACCESS_BOTH = 3 }; /* from cuda.h */

/* From cuda.h: CUmemLocation, CUmemAllocationProp and CUmemAccessDesc. */
struct location {
  int type, id;
};
struct properties {
  int type, handle_types;
  struct location location;
  void *win32;
  unsigned char flags[8];
};
struct access_of {
  struct location location;
  int flags;
};

enum { USERS = 4 }; /* contexts that use one mapping; of more the last is forgotten */
#define MAGIC_MEMORY 0x4d454d56

struct memory {
  uint32_t magic;
  CUcontext context;
  uint64_t offset, bytes;
  unsigned references; /* handles of the program, and mappings */
  unsigned handles;
  struct memory *next;
};

/* The newest work of a context that uses a mapping, by channel. */
struct use {
  CUcontext context;
  uint64_t seq[VG_CHANNELS];
};

struct mapping {
  CUdeviceptr address;
  uint64_t bytes;
  struct memory *memory;
  int access;
  struct use uses[USERS];
  struct mapping *next;
};

struct range {
  CUdeviceptr address;
  uint64_t bytes;
  struct range *next; /* in the order of addresses */
};

/* Under vg_lock. */
static struct range *ranges;
static struct mapping *mappings;
static struct memory *memories;

static bool whole(uint64_t bytes) { return bytes != 0 && bytes % VG_GRANULARITY == 0; }
static bool overlap(CUdeviceptr a, uint64_t a_bytes, CUdeviceptr b, uint64_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

static struct mapping *find_mapping(CUdeviceptr address) {
  for (struct mapping *m = mappings; m; m = m->next)
    if (address - m->address < m->bytes) return m;
  return NULL;
}

bool vg_mapped(CUcontext context, CUdeviceptr address, uint64_t *offset, uint64_t *bytes) {
  struct mapping *m = find_mapping(address);
  if (!m || m->access != ACCESS_BOTH) return false;
  CUcontext owner = m->memory->context;
  if (owner != context && (!owner->number || owner->device != context->device)) return false;
  *offset = m->memory->offset + (address - m->address);
  if (owner != context) *offset |= (uint64_t)owner->number << VG_NUMBER_SHIFT;
  *bytes = m->bytes - (address - m->address);
  return true;
}

void vg_mapped_used(CUcontext context, CUdeviceptr address, uint32_t channel) {
  struct mapping *m = find_mapping(address);
  if (!m) return;
  struct use *use = m->uses;
  while (use < m->uses + USERS - 1 && use->context && use->context != context)
    use++;
  if (use->context != context) *use = (struct use){.context = context};
  use->seq[channel] = context->put[channel];
}

CUresult vg_mapped_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
  struct mapping *m = find_mapping(address);
  if (!m) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = m->address;
  if (bytes) *bytes = m->bytes;
  return CUDA_SUCCESS;
}

static void drop(struct memory *memory) {
  if (--memory->references > 0) return;
  (void)vg_heap_give(memory->context, memory->offset);
  struct memory **at = &memories;
  while (*at != memory)
    at = &(*at)->next;
  *at = memory->next;
  memory->magic = 0;
  free(memory);
}

/* Ranges belong to the process and stay. */
void vg_vmm_destroy(CUcontext context) {
  for (struct mapping **at = &mappings; *at;) {
    struct mapping *m = *at;
    if (m->memory->context != context) {
      for (int k = 0; k < USERS; k++)
        if (m->uses[k].context == context) m->uses[k] = (struct use){0};
      at = &m->next;
      continue;
    }
    *at = m->next;
    free(m);
  }
  for (struct memory **at = &memories; *at;) {
    struct memory *memory = *at;
    if (memory->context != context) {
      at = &memory->next;
      continue;
    }
    *at = memory->next;
    memory->magic = 0;
    free(memory);
  }
}

/* ---- address ranges ------------------------------------------------------------------------ */

/* The address that was asked for if it is free, else the lowest one. */
static struct range **place(uint64_t bytes, uint64_t alignment, CUdeviceptr *address) {
  CUdeviceptr wanted = *address, at = VG_MAPPED_BASE;
  bool fits = wanted % alignment == 0 && vg_is_mapped(wanted) && bytes <= VG_MAPPED_END - wanted;
  for (struct range *r = ranges; r && fits; r = r->next)
    fits = !overlap(r->address, r->bytes, wanted, bytes);
  struct range **link = &ranges;
  if (fits) {
    while (*link && (*link)->address < wanted)
      link = &(*link)->next;
    return link;
  }
  for (;; link = &(*link)->next) {
    at = (at + alignment - 1) / alignment * alignment;
    if (!*link || at + bytes <= (*link)->address) break;
    at = (*link)->address + (*link)->bytes;
  }
  *address = at;
  return bytes <= VG_MAPPED_END - at ? link : NULL;
}

VG_EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment,
                                       CUdeviceptr wanted, unsigned long long flags) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!address || !whole(bytes) || flags != 0 || (alignment & (alignment - 1)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (alignment < VG_GRANULARITY) alignment = VG_GRANULARITY;
  if (bytes > VG_MAPPED_END - VG_MAPPED_BASE) return CUDA_ERROR_OUT_OF_MEMORY;
  struct range *range = calloc(1, sizeof *range);
  if (!range) return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&vg_lock);
  struct range **link = place(bytes, alignment, &wanted);
  if (!link) {
    free(range);
    return vg_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *range = (struct range){wanted, bytes, *link};
  *link = range;
  *address = wanted;
  return vg_leave(CUDA_SUCCESS);
}

VG_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&vg_lock);
  struct range **link = &ranges;
  while (*link && (*link)->address != address)
    link = &(*link)->next;
  bool free_able = *link && (*link)->bytes == bytes;
  for (struct mapping *m = mappings; m && free_able; m = m->next)
    free_able = !overlap(m->address, m->bytes, address, bytes);
  if (!free_able) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  struct range *range = *link;
  *link = range->next;
  free(range);
  return vg_leave(CUDA_SUCCESS);
}

/* ---- memory -------------------------------------------------------------------------------- */

static bool sound(const struct properties *properties) {
  return properties && properties->type == TYPE_PINNED && properties->handle_types == 0 &&
         properties->location.type == LOCATION_DEVICE &&
         vg_device_ordinal(properties->location.id) >= 0;
}

VG_EXPORT CUresult cuMemGetAllocationGranularity(size_t *bytes, const struct properties *properties,
                                                 int option) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!bytes || !sound(properties) || option < 0 || option > 1) return CUDA_ERROR_INVALID_VALUE;
  *bytes = VG_GRANULARITY;
  return CUDA_SUCCESS;
}

static CUcontext context_on(CUdevice device) {
  CUcontext current = vg_current();
  if (current && current->magic == MAGIC_CONTEXT && current->device == device) return current;
  for (uint32_t i = 0; i < VG_MAX_CONTEXTS; i++) {
    CUcontext context = vg_context_at(i);
    if (context && context->device == device) return context;
  }
  return NULL;
}

VG_EXPORT CUresult cuMemCreate(unsigned long long *handle, size_t bytes,
                               const struct properties *properties, unsigned long long flags) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!handle || !whole(bytes) || flags != 0 || !sound(properties)) return CUDA_ERROR_INVALID_VALUE;
  struct memory *memory = calloc(1, sizeof *memory);
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&vg_lock);
  *memory = (struct memory){.magic = MAGIC_MEMORY, .bytes = bytes, .references = 1, .handles = 1};
  memory->context = context_on(properties->location.id);
  result = memory->context ? vg_heap_take(memory->context, bytes, false, &memory->offset)
                           : CUDA_ERROR_INVALID_CONTEXT;
  if (result != CUDA_SUCCESS) {
    free(memory);
    return vg_leave(result);
  }
  memory->next = memories;
  memories = memory;
  *handle = (uintptr_t)memory;
  return vg_leave(CUDA_SUCCESS);
}

static struct memory *find_memory(unsigned long long handle) {
  for (struct memory *m = memories; m; m = m->next)
    if ((uintptr_t)m == handle && m->handles > 0) return m;
  return NULL;
}

/* The memory stays while it is mapped. */
VG_EXPORT CUresult cuMemRelease(unsigned long long handle) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&vg_lock);
  struct memory *memory = find_memory(handle);
  if (!memory) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  memory->handles--;
  drop(memory);
  return vg_leave(CUDA_SUCCESS);
}

VG_EXPORT CUresult cuMemRetainAllocationHandle(unsigned long long *handle, void *address) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&vg_lock);
  struct mapping *m = find_mapping((uintptr_t)address);
  if (!handle || !m) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  m->memory->references++;
  m->memory->handles++;
  *handle = (uintptr_t)m->memory;
  return vg_leave(CUDA_SUCCESS);
}

/* ---- mappings ------------------------------------------------------------------------------ */

static bool mappable(CUdeviceptr address, uint64_t bytes) {
  struct range *r = ranges;
  while (r && address - r->address >= r->bytes)
    r = r->next;
  if (!r || bytes > r->bytes - (address - r->address)) return false;
  for (struct mapping *m = mappings; m; m = m->next)
    if (overlap(m->address, m->bytes, address, bytes)) return false;
  return true;
}

VG_EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                            unsigned long long handle, unsigned long long flags) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!whole(bytes) || address % VG_GRANULARITY != 0 || offset != 0 || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  struct mapping *m = calloc(1, sizeof *m);
  if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&vg_lock);
  struct memory *memory = find_memory(handle);
  result = memory && bytes <= memory->bytes && mappable(address, bytes)
               ? vg_rm_step(memory->context, VG_MEMORY_MAP, bytes)
               : CUDA_ERROR_INVALID_VALUE;
  if (result != CUDA_SUCCESS) {
    free(m);
    return vg_leave(result);
  }
  memory->references++;
  *m = (struct mapping){.address = address, .bytes = bytes, .memory = memory, .next = mappings};
  mappings = m;
  return vg_leave(CUDA_SUCCESS);
}

/* Do whole mappings fill the range without a gap? */
static bool filled(CUdeviceptr address, uint64_t bytes) {
  CUdeviceptr end = address + bytes;
  while (address < end) {
    struct mapping *m = find_mapping(address);
    if (!m || m->address != address || m->bytes > end - address) return false;
    address += m->bytes;
  }
  return true;
}

/* A context whose submitted work uses the range. */
static CUcontext user_of(CUdeviceptr address, uint64_t bytes) {
  for (struct mapping *m = mappings; m; m = m->next)
    for (int k = 0; k < USERS && overlap(m->address, m->bytes, address, bytes); k++)
      for (uint32_t i = 0; m->uses[k].context && i < m->uses[k].context->channels; i++)
        if (m->uses[k].seq[i] > vg_done(m->uses[k].context, i)) return m->uses[k].context;
  return NULL;
}

/* Like the real driver, it does not wait for submitted work. Work that uses the memory is lost there; here it is
 * counted, and completed first. */
VG_EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&vg_lock);
  if (!whole(bytes) || !filled(address, bytes)) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  CUcontext context = find_mapping(address)->memory->context;
  for (CUcontext user; result == CUDA_SUCCESS && (user = user_of(address, bytes));) {
    (void)vg_rm_step(user, VG_MEMORY_TORN, bytes);
    result = vg_wait_all(user);
  }
  if (result == CUDA_SUCCESS) result = vg_rm_step(context, VG_MEMORY_UNMAP, bytes);
  if (result == CUDA_SUCCESS && !filled(address, bytes)) result = CUDA_ERROR_INVALID_VALUE;
  if (result != CUDA_SUCCESS) return vg_leave(result);
  for (struct mapping **at = &mappings; *at;) {
    struct mapping *m = *at;
    if (!overlap(m->address, m->bytes, address, bytes)) {
      at = &m->next;
      continue;
    }
    *at = m->next;
    drop(m->memory);
    free(m);
  }
  return vg_leave(CUDA_SUCCESS);
}

VG_EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const struct access_of *list,
                                  size_t count) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  if (!list || count == 0 || !whole(bytes)) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&vg_lock);
  if (!filled(address, bytes)) return vg_leave(CUDA_ERROR_INVALID_VALUE);
  for (size_t i = 0; i < count; i++)
    if (list[i].location.type != LOCATION_DEVICE || list[i].flags < 0 ||
        list[i].flags > ACCESS_BOTH || vg_device_ordinal(list[i].location.id) < 0)
      return vg_leave(CUDA_ERROR_INVALID_VALUE);
  for (struct mapping *m = mappings; m; m = m->next)
    for (size_t i = 0; i < count && overlap(m->address, m->bytes, address, bytes); i++)
      if (list[i].location.id == m->memory->context->device) m->access = list[i].flags;
  return vg_leave(CUDA_SUCCESS);
}

VG_EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const struct location *location,
                                  CUdeviceptr address) {
  CUresult result = vg_ready();
  if (result != CUDA_SUCCESS) return result;
  pthread_mutex_lock(&vg_lock);
  struct mapping *m = find_mapping(address);
  if (!flags || !location || !m || location->type != LOCATION_DEVICE)
    return vg_leave(CUDA_ERROR_INVALID_VALUE);
  *flags = location->id == m->memory->context->device ? (unsigned long long)m->access : 0;
  return vg_leave(CUDA_SUCCESS);
}
