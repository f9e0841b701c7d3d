/* SPDX-License-Identifier: Apache-2.0
 *
 * The release. This file is the only place with the version: the build reads it for the program, the
 * library's file name and SONAME, xsched.pc, the Python wheel and the packages.
 *
 * Versions are semantic. The first number changes with the binary interface of libxsched.so, so it is
 * also the number in the SONAME.
 */
#ifndef XSCHED_VERSION_H
#define XSCHED_VERSION_H

#define XS_VERSION_MAJOR 2
#define XS_VERSION_MINOR 0
#define XS_VERSION_PATCH 0

/* For comparisons: XS_VERSION >= XS_VERSION_NUMBER(2, 1, 0). */
#define XS_VERSION_NUMBER(major, minor, patch) ((major)*1000000 + (minor)*1000 + (patch))
#define XS_VERSION XS_VERSION_NUMBER(XS_VERSION_MAJOR, XS_VERSION_MINOR, XS_VERSION_PATCH)

#define XSI_VERSION_TEXT2(major, minor, patch) #major "." #minor "." #patch
#define XSI_VERSION_TEXT(major, minor, patch) XSI_VERSION_TEXT2(major, minor, patch)
#define XS_VERSION_STRING XSI_VERSION_TEXT(XS_VERSION_MAJOR, XS_VERSION_MINOR, XS_VERSION_PATCH)

#endif
