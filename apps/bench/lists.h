/* lists.h: owns the lists of a benchmark's command line: "1,16", "32/8,8/1", "e4m3,i8+rot". Pure. */
#ifndef APP_BENCH_LISTS_H
#define APP_BENCH_LISTS_H

#include "apps/command.h"
#include "engine/kv_config.h"

enum { BENCH_LIST_MAX = 64 };

typedef struct bench_counts { uint32_t n, item[BENCH_LIST_MAX]; } bench_counts;
typedef struct bench_pairs { uint32_t n, first[BENCH_LIST_MAX], second[BENCH_LIST_MAX]; } bench_pairs;
typedef struct bench_formats { uint32_t n; oct_kv_format item[BENCH_LIST_MAX]; char name[BENCH_LIST_MAX][48]; } bench_formats;

/* Each number within min .. max. All return APP_OK, or the exit code after a message that names the flag. */
int bench_read_counts(const app_command *command, const char *flag, const char *text, uint32_t min, uint32_t max, bench_counts *list);

/* "32/8"; a number alone stands for both. */
int bench_read_pairs(const app_command *command, const char *flag, const char *text, uint32_t min, uint32_t max, bench_pairs *list);

/* Names of -ctk. */
int bench_read_formats(const app_command *command, const char *flag, const char *text, bench_formats *list);

#endif
