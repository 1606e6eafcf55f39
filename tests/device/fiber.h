/* fiber.h: owns stacks that take turns: the lanes of the executor. Sanitizers are told of every switch.
 * Threads: all fibers of a process belong to one thread. */
#ifndef DEVICE_FIBER_H
#define DEVICE_FIBER_H

#include <stddef.h>

typedef struct fiber {
    void *top;             /* stack pointer while it does not run */
    unsigned char *stack;  /* NULL: the thread's own stack */
    size_t stack_bytes;
    void *fake_stack;      /* address sanitizer's */
    void *tsan;            /* thread sanitizer's */
} fiber;

/* The stack this is called on, as a fiber to switch back to. */
void fiber_adopt(fiber *f);

/* run(), which must never return, will start on the stack when it is first switched to. */
void fiber_make(fiber *f, unsigned char *stack, size_t stack_bytes, void (*run)(void));

/* From the running fiber to another; returns when somebody switches back. abandon: nobody will. */
void fiber_switch(fiber *from, fiber *to, int abandon);

/* The first thing that run() calls. */
void fiber_entered(fiber *f);

void fiber_drop(fiber *f);

#endif
