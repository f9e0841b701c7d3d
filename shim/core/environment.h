/* SPDX-License-Identifier: Apache-2.0
 *
 * Environment variables, as text.
 */
#ifndef XSCHED_CORE_ENVIRONMENT_H
#define XSCHED_CORE_ENVIRONMENT_H

#include "base.h"

/* Copies a variable: its length, -ENOENT if it is unset, -E2BIG if it does not fit. A set-uid program
 * has no variables. */
int xsi_environment(const char *name, char *value, size_t bytes);
/* Parses all of text as a decimal number within the limits. */
bool xsi_parse_decimal(const char *text, long minimum, long maximum, long *value);

#endif /* XSCHED_CORE_ENVIRONMENT_H */
