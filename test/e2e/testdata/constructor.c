/* SPDX-License-Identifier: Apache-2.0
 *
 * A library whose constructor calls the program that loads it.
 */
void in_constructor(void);
__attribute__((constructor)) static void load(void) { in_constructor(); }
