/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on hints as values. The table of fields is generated (hints_gen.h).
 */
#ifndef XSCHED_CORE_HINT_FIELDS_H
#define XSCHED_CORE_HINT_FIELDS_H

#include "base.h"
#include "xsched/wire.h"

/* Copies the fields that said sets. */
void xsi_hint_merge(struct xsw_hint *into, const struct xsw_hint *said);
/* True if every field is in its range, set or not. */
bool xsi_hint_sound(const struct xsw_hint *hint);
/* Copies a name, cut to fit, and fills the rest with zeros. */
void xsi_hint_copy_name(char *to, const char *from, size_t room);

#endif /* XSCHED_CORE_HINT_FIELDS_H */
