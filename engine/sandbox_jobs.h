/* The boundary to llama.cpp's C++: what runs in the sandbox's process. No exception passes it. */
#ifndef OCTE_SANDBOX_JOBS_H
#define OCTE_SANDBOX_JOBS_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a job ended: text has what was asked for, or why not. REFUSED: by the template's own raise_exception. */
typedef enum octe__job_outcome { OCTE__JOB_DONE = 1, OCTE__JOB_REFUSED, OCTE__JOB_FAILED, OCTE__JOB_NO_MEMORY, OCTE__JOB_TOO_LONG } octe__job_outcome;

typedef struct octe__job_text {
    char *bytes;     /* [room]; no zero at the end */
    size_t n, room;
} octe__job_text;

/* variables_json NULL: the template is only read. */
octe__job_outcome octe__job_chat(const char *chat_template, const char *variables_json, octe__job_text *text);
octe__job_outcome octe__job_grammar(const char *schema_json, octe__job_text *text);

#ifdef __cplusplus
}
#endif
#endif
