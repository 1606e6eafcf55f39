/* fiber.c: the switch saves what the System V ABI makes the callee save; 20 instructions, no system call. */
#define _GNU_SOURCE
#include "device/fiber.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

#if !defined(__x86_64__)
#error "fiber.c knows the calling convention of x86-64 only"
#endif

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define WITH_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WITH_TSAN 1
#endif
#endif

#if defined(WITH_ASAN)
void __sanitizer_start_switch_fiber(void **fake_stack_save, const void *bottom, size_t size);
void __sanitizer_finish_switch_fiber(void *fake_stack_save, const void **bottom_old, size_t *size_old);
void __asan_unpoison_memory_region(const volatile void *memory, size_t size_bytes);
#endif
#if defined(WITH_TSAN)
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
#endif

/* void simt_switch(void **save, void *to) */
void simt_switch(void **save, void *to);
__asm__(".text\n"
        ".globl simt_switch\n"
        ".hidden simt_switch\n"
        ".type simt_switch,@function\n"
        "simt_switch:\n"
        "    push %rbp\n"
        "    push %rbx\n"
        "    push %r12\n"
        "    push %r13\n"
        "    push %r14\n"
        "    push %r15\n"
        "    mov %rsp,(%rdi)\n"
        "    mov %rsi,%rsp\n"
        "    pop %r15\n"
        "    pop %r14\n"
        "    pop %r13\n"
        "    pop %r12\n"
        "    pop %rbx\n"
        "    pop %rbp\n"
        "    ret\n"
        ".size simt_switch,.-simt_switch\n");

void fiber_adopt(fiber *f)
{
    memset(f, 0, sizeof *f);
#if defined(WITH_ASAN)
    static void *stack;   /* asked once: the answer is read from the kernel's list of mappings */
    static size_t size_bytes;
    pthread_attr_t attributes;
    if (stack == NULL && pthread_getattr_np(pthread_self(), &attributes) == 0) {
        pthread_attr_getstack(&attributes, &stack, &size_bytes);
        pthread_attr_destroy(&attributes);
    }
    f->stack = stack;
    f->stack_bytes = size_bytes;
#endif
#if defined(WITH_TSAN)
    f->tsan = __tsan_get_current_fiber();
#endif
}

void fiber_make(fiber *f, unsigned char *stack, size_t stack_bytes, void (*run)(void))
{
    fiber_drop(f);
    f->stack = stack;
    f->stack_bytes = stack_bytes;
    f->fake_stack = NULL;
#if defined(WITH_ASAN)
    __asan_unpoison_memory_region(stack, stack_bytes);   /* of the frames of a run that was given up in the middle */
#endif
    /* run() begins as after a call: with a return address (of nowhere) on top, which leaves the stack pointer at 8 modulo 16. */
    void **top = (void **)(void *)(stack + stack_bytes);
    *--top = NULL;
    union {
        void (*function)(void);
        void *address;
    } start = { .function = run };
    *--top = start.address;
    top -= 6;
    memset(top, 0, 6 * sizeof *top);
    f->top = top;
#if defined(WITH_TSAN)
    f->tsan = __tsan_create_fiber(0);
#endif
}

void fiber_entered(fiber *f)
{
#if defined(WITH_ASAN)
    __sanitizer_finish_switch_fiber(f->fake_stack, NULL, NULL);
#endif
    (void)f;
}

void fiber_switch(fiber *from, fiber *to, int abandon)
{
#if defined(WITH_ASAN)
    __sanitizer_start_switch_fiber(abandon ? NULL : &from->fake_stack, to->stack, to->stack_bytes);
#endif
#if defined(WITH_TSAN)
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
    (void)abandon;
    simt_switch(&from->top, to->top);
    fiber_entered(from);
}

void fiber_drop(fiber *f)
{
#if defined(WITH_TSAN)
    if (f->tsan != NULL) {
        __tsan_destroy_fiber(f->tsan);
    }
#endif
    f->tsan = NULL;
}
