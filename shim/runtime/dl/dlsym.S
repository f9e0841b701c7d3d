/* SPDX-License-Identifier: Apache-2.0
 *
 * dlsym and dlvsym as exported. RTLD_NEXT and RTLD_DEFAULT mean something relative to the caller,
 * which libc takes from the return address: so the real function is jumped to, never called, and the
 * stack is as the application left it. For names whose first letter a hooked name has, C code decides first
 * (dl.c), but not for RTLD_NEXT. */

#if defined(__x86_64__)

#ifdef __CET__
#include <cet.h>
#else
#define _CET_ENDBR
#endif

	.text

/* After a C call the arguments are as before; it returns in rax and rdx. */
.macro call_keeping_arguments function
	pushq %rdi
	.cfi_adjust_cfa_offset 8
	pushq %rsi
	.cfi_adjust_cfa_offset 8
	pushq %rdx
	.cfi_adjust_cfa_offset 8
	call \function
	movq %rdx, %rcx
	popq %rdx
	.cfi_adjust_cfa_offset -8
	popq %rsi
	.cfi_adjust_cfa_offset -8
	popq %rdi
	.cfi_adjust_cfa_offset -8
.endm

.macro interposed name
	.globl \name
	.type \name, @function
	.p2align 4
\name:
	.cfi_startproc
	_CET_ENDBR
	testq %rsi, %rsi
	je 1f
	movzbl (%rsi), %eax
	leaq xsi_dl_first(%rip), %rcx
	cmpb $0, (%rcx, %rax)
	je 1f
	cmpq $-1, %rdi /* RTLD_NEXT */
	je 1f
	call_keeping_arguments xsi_\name\()_resolve
	testq %rcx, %rcx
	je 1f
	ret
1:	movq xsi_\name\()_target(%rip), %rax
	testq %rax, %rax
	je 2f
	jmp *%rax
2:	call_keeping_arguments xsi_dl_prepare
	jmp \name
	.cfi_endproc
	.size \name, .-\name
.endm

#elif defined(__aarch64__)

	.text

.macro call_keeping_arguments function
	stp x29, x30, [sp, #-48]!
	.cfi_def_cfa_offset 48
	.cfi_offset x29, -48
	.cfi_offset x30, -40
	mov x29, sp
	stp x0, x1, [sp, #16]
	str x2, [sp, #32]
	bl \function
	mov x16, x0
	mov x17, x1
	ldp x0, x1, [sp, #16]
	ldr x2, [sp, #32]
	ldp x29, x30, [sp], #48
	.cfi_def_cfa_offset 0
	.cfi_restore x29
	.cfi_restore x30
.endm

.macro interposed name
	.globl \name
	.type \name, %function
	.p2align 4
\name:
	.cfi_startproc
	hint #34 /* bti c */
	cbz x1, 1f
	ldrb w3, [x1]
	adrp x4, xsi_dl_first
	add x4, x4, #:lo12:xsi_dl_first
	ldrb w3, [x4, w3, uxtw]
	cbz w3, 1f
	cmn x0, #1 /* RTLD_NEXT */
	b.eq 1f
	call_keeping_arguments xsi_\name\()_resolve
	cbz x17, 1f
	mov x0, x16
	ret
1:	adrp x16, xsi_\name\()_target
	ldr x16, [x16, #:lo12:xsi_\name\()_target]
	cbz x16, 2f
	br x16
2:	call_keeping_arguments xsi_dl_prepare
	b \name
	.cfi_endproc
	.size \name, .-\name
.endm

#else
#error "dlsym.S: this architecture is not known"
#endif

	.hidden xsi_dlsym_resolve
	.hidden xsi_dlvsym_resolve
	.hidden xsi_dl_prepare
	.hidden xsi_dl_first
	.hidden xsi_dlsym_target
	.hidden xsi_dlvsym_target

	interposed dlsym
	interposed dlvsym

	.section .note.GNU-stack, "", %progbits
