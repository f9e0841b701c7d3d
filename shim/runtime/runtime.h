/* SPDX-License-Identifier: Apache-2.0
 *
 * A runtime: a user-space library whose calls submit work to a device and wait for it. Each is a folder
 * with a table of hooked functions, an entry in registry.c, and exports.txt, the names that the library
 * exports for it. It reports work, waits and events to core/work.h.
 *
 * This part is the same for all: which names are hooked, and where the real functions are.
 */
#ifndef XSCHED_RUNTIME_H
#define XSCHED_RUNTIME_H

#include "core/base.h"

enum { XSI_PATH_BYTES = 4096 };

struct xsi_symbol {
  const char *name;
  void *hook; /* NULL: not hooked, only called */
};

struct xsi_runtime {
  const char *name;
  /* Every hooked name begins with one of these; ends with NULL. Checked first, for each dlsym. */
  const char *const *prefixes;
  /* Its entry points that are not hooked, sorted: generated from entry_points.txt. */
  const char *const *known;
  const unsigned *known_count;
  const struct xsi_symbol *symbols; /* the hooked ones first, sorted by name */
  unsigned hooks, slots;
  void **real;   /* [slots]; NULL until bound */
  bool *missing; /* [slots]; the library was asked and has none */

  void (*read_options)(void); /* its own environment variables; NULL: it has none */
  /* True if the runtime's library has such a path. */
  bool (*is_library)(const char *path);
  /* The library's handle if it is loaded, which keeps it loaded; never loads it. */
  void *(*library)(void);
  /* An address of the library is about to be bound; false: it must stay as it is. NULL: always true. */
  bool (*adopt)(unsigned slot, void *address);
  /* What a program gets for a function of the library that is not hooked. NULL: its address. */
  void *(*unhooked)(const char *name, void *address);
  /* What to call when the library is not loaded; NULL: nothing. */
  void *(*absent)(unsigned slot);
};

#define XSI_KNOWN(runtime)                                                                         \
  extern const char *const xsi_known_##runtime[];                                                  \
  extern const unsigned xsi_known_##runtime##_count;
XSI_KNOWN(cuda)
XSI_KNOWN(hip)
XSI_KNOWN(opencl)

/* Ends with NULL; registry.c. */
extern const struct xsi_runtime *const xsi_runtimes[];

/* Starts the core and reads the options of all runtimes, once. */
void xsi_runtime_init(void);

/* The slot of a hooked name, or -1. Calls no other function: see core/elf.c. */
int xsi_runtime_find(const struct xsi_runtime *runtime, const char *name);
/* The place of a name, or of an older or newer version of it, among the known ones that are not hooked; or -1. */
int xsi_runtime_known(const struct xsi_runtime *runtime, const char *name);
/* A name that is not hooked: could it be the runtime's, and is it unknown? */
bool xsi_runtime_unlisted(const struct xsi_runtime *runtime, const char *name);
/* The same of a name that is not hooked: is it unknown, and does it look like submission, capture or wait?
 * Of several versions of a name one is enough to know it. */
bool xsi_runtime_suspects(const struct xsi_runtime *runtime, const char *name);
/* A program asked for such a name and got it: counts and logs each name once. */
void xsi_runtime_unknown(const char *name);
/* Finds the real function; NULL: there is none. */
void *xsi_runtime_bind(const struct xsi_runtime *runtime, unsigned slot);
/* Finds all of them. Takes the loader's lock, whose holder may wait for a lock of ours: a dlopen runs
 * constructors, and these may destroy streams. Called before any lock of ours is taken. */
void xsi_runtime_bind_all(const struct xsi_runtime *runtime);
/* Takes an address of the library for the real function, unless one is bound. False: not adopted. */
bool xsi_runtime_bind_to(const struct xsi_runtime *runtime, unsigned slot, void *address);
/* What dlsym (version NULL) or dlvsym returns for a hooked name. */
void *xsi_runtime_resolve(const struct xsi_runtime *runtime, unsigned slot, void *handle,
                          const char *version);
bool xsi_runtime_has(const struct xsi_runtime *runtime, void *address); /* in any copy of it */

/* Redirects calls that the loader bound to a runtime, because the program was linked with that one first.
 * False: calls of the program reach no hook. */
bool xsi_runtime_rebind(void);

/* The handle of a library that is loaded under this name, stored in *handle from then on. */
void *xsi_runtime_loaded(void **handle, const char *name);

/* A stand-in has a runtime's name and no code: it makes the loader load this library and then the runtime
 * (`xsched link-runtimes`). It is not the runtime. */
struct dl_phdr_info;
bool xsi_runtime_stands_in(const struct dl_phdr_info *object);
/* The path of the runtime behind a stand-in, among those that are loaded. */
bool xsi_runtime_behind(const struct xsi_runtime *runtime, char path[XSI_PATH_BYTES]);

bool xsi_in_shim(void *address);
const char *xsi_base_name(const char *path);

/* Ends the definition of a hook: a name for it that no other library can take over. */
#define XSI_HOOK(symbol)                                                                           \
  extern __typeof__(symbol) xsi_hook_##symbol __attribute__((visibility("hidden"), alias(#symbol)));

#endif /* XSCHED_RUNTIME_H */
