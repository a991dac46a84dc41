/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Switching between the stacks of simulated tasks.
 *
 * It is done by hand on x86-64 and aarch64, since swapcontext makes two system calls, and with
 * ucontext elsewhere. The sanitizers are told of each switch. Stacks have a guard page below. They
 * are pooled during a run.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/rt/sim.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define STACK_BYTES ((size_t)1 << 20) /* frames have red zones */
#else
#define STACK_BYTES ((size_t)256 << 10)
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#define GUARD_BYTES ((size_t)4096)

/* ---- stacks ---------------------------------------------------------------------- */

/* A free stack has the link to the next one in its highest word. */
static char *stack_pool;

static char **stack_link(char *stack)
{
	return (char **)(stack + STACK_BYTES - sizeof(char *));
}

static char *stack_take(void)
{
	char *p = stack_pool;

	if (p) {
		stack_pool = *stack_link(p);
		return p;
	}
	p = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	if (mprotect(p, GUARD_BYTES, PROT_NONE) < 0) {
		munmap(p, GUARD_BYTES + STACK_BYTES);
		return NULL;
	}
	return p + GUARD_BYTES;
}

static void stack_give(char *stack)
{
#if defined(__SANITIZE_ADDRESS__)
	__asan_unpoison_memory_region(stack, STACK_BYTES);
#endif
	*stack_link(stack) = stack_pool;
	stack_pool = stack;
}

void sim_stacks_free(void)
{
	while (stack_pool) {
		char *stack = stack_pool;

		stack_pool = *stack_link(stack);
		WEFT_ASSERT(munmap(stack - GUARD_BYTES, GUARD_BYTES + STACK_BYTES) == 0);
	}
}

/* ---- the switch -------------------------------------------------------------------- */

#if defined(__x86_64__)

/* Saves the registers that a call preserves by the ABI on the stack, and changes stacks. */
void sim_switch_stack(void **save_sp, void *sp);
__asm__(".text\n"
	".type sim_switch_stack, @function\n"
	".globl sim_switch_stack\n"
	"sim_switch_stack:\n"
	"	pushq %rbp\n"
	"	pushq %rbx\n"
	"	pushq %r12\n"
	"	pushq %r13\n"
	"	pushq %r14\n"
	"	pushq %r15\n"
	"	subq $8, %rsp\n"
	"	stmxcsr (%rsp)\n"
	"	fnstcw 4(%rsp)\n"
	"	movq %rsp, (%rdi)\n"
	"	movq %rsi, %rsp\n"
	"	ldmxcsr (%rsp)\n"
	"	fldcw 4(%rsp)\n"
	"	addq $8, %rsp\n"
	"	popq %r15\n"
	"	popq %r14\n"
	"	popq %r13\n"
	"	popq %r12\n"
	"	popq %rbx\n"
	"	popq %rbp\n"
	"	ret\n"
	".size sim_switch_stack, . - sim_switch_stack\n");

static void *first_frame(char *stack, void (*entry)(void))
{
	/* control words, six registers, the entry as return address, no caller */
	void **sp = (void **)(stack + STACK_BYTES) - 9;
	uint32_t mxcsr;
	uint16_t fpu;

	memset(sp, 0, 9 * sizeof(*sp));
	__asm__ volatile("stmxcsr %0" : "=m"(mxcsr));
	__asm__ volatile("fnstcw %0" : "=m"(fpu));
	memcpy(sp, &mxcsr, sizeof(mxcsr));
	memcpy((char *)sp + 4, &fpu, sizeof(fpu));
	memcpy(&sp[7], &entry, sizeof(entry));
	return sp;
}

#elif defined(__aarch64__)

void sim_switch_stack(void **save_sp, void *sp);
__asm__(".text\n"
	".type sim_switch_stack, %function\n"
	".globl sim_switch_stack\n"
	"sim_switch_stack:\n"
	"	sub sp, sp, #160\n"
	"	stp x19, x20, [sp, #0]\n"
	"	stp x21, x22, [sp, #16]\n"
	"	stp x23, x24, [sp, #32]\n"
	"	stp x25, x26, [sp, #48]\n"
	"	stp x27, x28, [sp, #64]\n"
	"	stp x29, x30, [sp, #80]\n"
	"	stp d8, d9, [sp, #96]\n"
	"	stp d10, d11, [sp, #112]\n"
	"	stp d12, d13, [sp, #128]\n"
	"	stp d14, d15, [sp, #144]\n"
	"	mov x9, sp\n"
	"	str x9, [x0]\n"
	"	mov sp, x1\n"
	"	ldp x19, x20, [sp, #0]\n"
	"	ldp x21, x22, [sp, #16]\n"
	"	ldp x23, x24, [sp, #32]\n"
	"	ldp x25, x26, [sp, #48]\n"
	"	ldp x27, x28, [sp, #64]\n"
	"	ldp x29, x30, [sp, #80]\n"
	"	ldp d8, d9, [sp, #96]\n"
	"	ldp d10, d11, [sp, #112]\n"
	"	ldp d12, d13, [sp, #128]\n"
	"	ldp d14, d15, [sp, #144]\n"
	"	add sp, sp, #160\n"
	"	ret\n"
	".size sim_switch_stack, . - sim_switch_stack\n");

static void *first_frame(char *stack, void (*entry)(void))
{
	void **sp = (void **)(stack + STACK_BYTES) - 20;

	memset(sp, 0, 20 * sizeof(*sp));
	memcpy(&sp[11], &entry, sizeof(entry)); /* x30 */
	return sp;
}

#else
#define SIM_UCONTEXT
#include <ucontext.h>
#endif

int sim_context_make(struct sim_context *c, void (*entry)(void))
{
	char *stack = stack_take();

	if (!stack)
		return -ENOMEM;
	*c = (struct sim_context){
		.stack = stack, .bottom = stack, .bottom_size = STACK_BYTES};
#if defined(SIM_UCONTEXT)
	ucontext_t *u = sim_own_alloc(sizeof(*u));

	WEFT_ASSERT(getcontext(u) == 0);
	u->uc_stack.ss_sp = stack;
	u->uc_stack.ss_size = STACK_BYTES;
	makecontext(u, entry, 0);
	c->ucontext = u;
#else
	c->sp = first_frame(stack, entry);
#endif
#if defined(__SANITIZE_THREAD__)
	c->fiber = __tsan_create_fiber(0);
#endif
	return 0;
}

void sim_context_free(struct sim_context *c)
{
#if defined(__SANITIZE_THREAD__)
	__tsan_destroy_fiber(c->fiber);
#endif
	free(c->ucontext);
	stack_give(c->stack);
}

void sim_context_main(struct sim_context *c)
{
	*c = (struct sim_context){0};
#if defined(SIM_UCONTEXT)
	c->ucontext = sim_own_alloc(sizeof(ucontext_t));
#endif
#if defined(__SANITIZE_THREAD__)
	c->fiber = __tsan_get_current_fiber();
#endif
}

void sim_context_main_done(struct sim_context *c)
{
	free(c->ucontext);
}

void sim_context_entered(struct sim_context *self, struct sim_context *from)
{
#if defined(__SANITIZE_ADDRESS__)
	/* The first switch away from the thread's own stack gives its place. */
	__sanitizer_finish_switch_fiber(
		self->fake_stack, &from->bottom, &from->bottom_size);
#endif
}

void sim_context_switch(struct sim_context *from, struct sim_context *to, bool dying)
{
	sim->switched_from = from;
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_start_switch_fiber(
		dying ? NULL : &from->fake_stack, to->bottom, to->bottom_size);
#endif
#if defined(__SANITIZE_THREAD__)
	__tsan_switch_to_fiber(to->fiber, 0);
#endif
#if defined(SIM_UCONTEXT)
	swapcontext(from->ucontext, to->ucontext);
#else
	sim_switch_stack(&from->sp, to->sp);
#endif
	sim_context_entered(from, sim->switched_from);
}
