/* What strangers' files and requests may make endless or worse, in a process of its own with limits: a GGUF's chat template, rendered as Jinja, and JSON Schemas, turned into
 * grammars, both by llama.cpp's own code (llama-jinja of tools/setup/llama.sh). A template may loop, take memory or crash what renders it: it takes its time and its own process
 * with it, and the caller gets an error. One job of up to 64 KiB and one of more at a time; any thread. */
#ifndef OCTE_SANDBOX_H
#define OCTE_SANDBOX_H

#include <stdbool.h>

#include "engine/vocab.h"

typedef struct octe_sandbox octe_sandbox;

/* Of one job: processor time, memory, bytes of what comes in and of what goes out. */
enum { OCTE_SANDBOX_SECONDS = 2, OCTE_SANDBOX_MEMORY_MIB = 512, OCTE_SANDBOX_TEXT_BYTES = 32 << 20 };

/* Whether this engine was built with llama-jinja. */
bool octe_sandbox_is_built(void);

/* Forks: call it while the process has one thread, best before anything large is loaded. The processes that this makes end with *sandbox or with their parent. UNSUPPORTED:
 * not built. IO_ERROR, OUT_OF_MEMORY: no process. */
oct_status octe_sandbox_open(octe_sandbox **sandbox, oct_error *error);
void octe_sandbox_close(octe_sandbox *sandbox);   /* NULL is fine */

/* Whether the vocabulary's chat template can be read as Jinja. UNSUPPORTED: there is none, or it can't. */
oct_status octe_sandbox_check_chat(octe_sandbox *sandbox, const octe_vocab *vocab, oct_error *error);

/* The vocabulary's chat template rendered, as Hugging Face's libraries do (blocks trimmed; raise_exception, strftime_now, namespace). variables: a JSON object of what the template
 * sees (messages, add_generation_prompt, ...) beside bos_token and eos_token. *text is malloc'ed. INVALID_ARGUMENT: the template refuses it, in its own words. UNSUPPORTED: no
 * template, or the limits. IO_ERROR: the process has ended. */
oct_status octe_sandbox_chat(octe_sandbox *sandbox, const octe_vocab *vocab, const char *variables, char **text, oct_error *error);

/* A JSON Schema, as octe_schema_prepare leaves it, as llama.cpp's GBNF (octe_sampler_options.grammar). *grammar is malloc'ed. Errors as above. */
oct_status octe_sandbox_grammar(octe_sandbox *sandbox, const char *schema, char **grammar, oct_error *error);

#endif
