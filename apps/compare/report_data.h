/* report_data.h: owns the forms of a comparison for programs; report.h is the door. Pure. */
#ifndef APP_COMPARE_REPORT_DATA_H
#define APP_COMPARE_REPORT_DATA_H

#include "apps/compare/report.h"

/* A list of rows, one a format and judgement, each with the keys format k_scale_mode kv_bytes_per_token tokens_per_gib prefill_tps decode_tps
 * (objects by depth; empty where speed was not measured, as on the F32 copy) ppl ppl_stderr kld_mean same_top saturated text cpu model n_threads. */
void compare_report_json(const compare_report *report, app_text *text);

/* The same rows and numbers under one line of heads; prefill_tps_0, prefill_tps_2048 and so on by depth. */
void compare_report_csv(const compare_report *report, app_text *text);

#endif
