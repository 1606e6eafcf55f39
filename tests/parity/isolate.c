/* isolate.c: see isolate.h. */
#define _DEFAULT_SOURCE
#include "parity/isolate.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CRASHES_MAX = 20, FAILURES_SHOWN_MAX = 40 };

/* Where the first failure says all (tests/mutation), the cases after it are left out. */
#ifdef ISOLATE_STOP
enum { STOPS = 1 };
#else
enum { STOPS = 0 };
#endif

static isolate_board *board;

static isolate_board *get_board(void)
{
    if (board == NULL) {
        board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (board == MAP_FAILED) {
            perror("isolate: mmap");
            exit(1);
        }
    }
    return board;
}

static void in_child(int64_t first, int64_t n, unsigned seconds, isolate_case *run, void *arg)
{
    static const int crashes[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM };
    for (size_t i = 0; i < sizeof crashes / sizeof crashes[0]; i++)   /* cmocka's handlers would go on with the next test here */
        signal(crashes[i], SIG_DFL);
    for (int64_t i = first; i < n; i++) {
        board->next = i;
        alarm(seconds);
        board->failures += run(arg, i);
        if (STOPS && board->failures > 0)
            break;
    }
    alarm(0);
    board->next = n;
    /* exit and not _exit, so that the leak sanitizer looks at the child too */
    exit(0);
}

int64_t isolate_run(const char *title, int64_t n, unsigned seconds, isolate_case *run, void *arg)
{
    get_board();
    const int64_t skipped_before = board->skipped, passed_over_before = board->passed_over;
    board->failures = 0;
    board->crashes = 0;
    board->next = 0;
    board->doing[0] = board->repeat[0] = 0;
    for (int64_t first = 0; first < n;) {
        int status = 0;
        fflush(NULL);
        const pid_t child = fork();
        if (child == 0)
            in_child(first, n, seconds, run, arg);
        if (child < 0 || waitpid(child, &status, 0) != child) {
            perror("isolate: fork");
            return 1;
        }
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            break;
        board->crashes++;
        if (WIFSIGNALED(status))
            fprintf(stderr, "%s: case %lld: %s (signal %d) in %s\n  repeat: %s\n", title, (long long)board->next,
                    WTERMSIG(status) == SIGALRM ? "hung" : strsignal(WTERMSIG(status)), WTERMSIG(status), board->doing, board->repeat);
        else
            fprintf(stderr, "%s: case %lld: exit status %d in %s\n  repeat: %s\n", title, (long long)board->next, WEXITSTATUS(status),
                    board->doing, board->repeat);
        if (STOPS)
            break;
        if (board->crashes >= CRASHES_MAX) {
            fprintf(stderr, "%s: %d crashes; the remaining %lld cases did not run\n", title, CRASHES_MAX, (long long)(n - board->next - 1));
            break;
        }
        first = board->next + 1;
    }
    if (board->skipped > skipped_before)
        fprintf(stderr, "[  SKIPPED ] %s: %lld runs of rows that this machine cannot run\n", title, (long long)(board->skipped - skipped_before));
    if (board->passed_over > passed_over_before)
        fprintf(stderr, "%s: %lld runs of rows that the problem is not for\n", title, (long long)(board->passed_over - passed_over_before));
    return board->failures + board->crashes;
}

void isolate_doing(const char *form, ...)
{
    va_list args;
    va_start(args, form);
    vsnprintf(get_board()->doing, sizeof board->doing, form, args);
    va_end(args);
}

void isolate_repeat(const char *form, ...)
{
    va_list args;
    va_start(args, form);
    vsnprintf(get_board()->repeat, sizeof board->repeat, form, args);
    va_end(args);
}

static int find_name(const char *name, int make)
{
    get_board();
    for (int i = 0; i < ISOLATE_NAMES; i++) {
        if (strcmp(board->names[i], name) == 0)
            return i;
        if (board->names[i][0] == 0) {
            if (!make)
                return -1;
            snprintf(board->names[i], sizeof board->names[i], "%s", name);
            return i;
        }
    }
    return -1;
}

void isolate_ran(const char *name, double worst)
{
    const int i = find_name(name, 1);
    if (i < 0)
        return;
    board->n_ran[i]++;
    if (worst > board->worst[i])
        board->worst[i] = worst;
}

int64_t isolate_n_ran(const char *name)
{
    const int i = find_name(name, 0);
    return i < 0 ? 0 : board->n_ran[i];
}

void isolate_skipped(void) { get_board()->skipped++; }

void isolate_passed_over(void) { get_board()->passed_over++; }

void isolate_fail(const char *form, ...)
{
    static int shown;
    va_list args;
    if (shown == FAILURES_SHOWN_MAX)
        fprintf(stderr, "(further failures are counted but not shown)\n");
    if (shown++ >= FAILURES_SHOWN_MAX)
        return;
    fprintf(stderr, "FAIL %s: ", get_board()->doing);
    va_start(args, form);
    vfprintf(stderr, form, args);
    va_end(args);
    fprintf(stderr, "\n  repeat: %s\n", board->repeat);
}

void isolate_report(void)
{
    get_board();
    for (int i = 0; i < ISOLATE_NAMES && board->names[i][0] != 0; i++)
        fprintf(stderr, "%-28s judged on %lld cases, worst error %.3g\n", board->names[i], (long long)board->n_ran[i], board->worst[i]);
}
