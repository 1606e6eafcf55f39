/* interrupt.c: see interrupt.h. */
#include "apps/interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t asked;

static void ask(int number)
{
    (void)number;
    asked = 1;
}

void app_interrupt_install(void)
{
    struct sigaction action = { 0 };
    action.sa_handler = ask;
    sigemptyset(&action.sa_mask);
    action.sa_flags = (int)(SA_RESETHAND | SA_RESTART);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

bool app_interrupted(void)
{
    return asked != 0;
}
