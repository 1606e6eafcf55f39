/* report.h: owns what a comparison found and its four forms: text for people, Markdown for pages, JSON and CSV for programs. Pure. */
#ifndef APP_COMPARE_REPORT_H
#define APP_COMPARE_REPORT_H

#include "apps/compare/quality.h"
#include "apps/compare/speed.h"
#include "apps/text.h"

enum { COMPARE_MAX_JUDGEMENTS = 32 };

/* Every format judged on one text with one set of weights. */
typedef struct compare_judgement {
    const char *text;
    bool is_f32;                                   /* on the F32 copy; else on the file as it is */
    compare_quality quality[COMPARE_MAX_FORMATS];
} compare_judgement;

typedef struct compare_report {
    const compare_format *formats;
    uint32_t n_formats;
    const octe_model_info *model;
    char file[128];                                /* its base name */
    char cpu[128];
    uint32_t n_threads;
    octe_kv_capacity capacity[COMPARE_MAX_FORMATS];
    const compare_speed_options *speed_options;    /* n_depths 0: speed was not measured */
    compare_speed speed[COMPARE_MAX_FORMATS];
    const compare_quality_options *quality_options;
    compare_judgement judgements[COMPARE_MAX_JUDGEMENTS];
    uint32_t n_judgements;                         /* 0: quality was not judged; else the first is of the file as it is */
    const char *prompt;
    char *answers[COMPARE_MAX_FORMATS];            /* NULL: not asked */
    double seconds;                                /* the whole run */
} compare_report;

/* form: "text", "md", "json", "csv". */
void compare_report_add(const compare_report *report, const char *form, app_text *text);

#endif
