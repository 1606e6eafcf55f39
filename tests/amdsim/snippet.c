/* snippet.c: see snippet.h. */
#include "amdsim/snippet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned char has_run[1024];

static const char descriptor[] =
    "\n\t.section .rodata\n\t.amdhsa_kernel snippet\n\t\t.amdhsa_group_segment_fixed_size %u\n\t\t.amdhsa_kernarg_size 16\n"
    "\t\t.amdhsa_user_sgpr_count 2\n\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1\n\t\t.amdhsa_system_sgpr_workgroup_id_x 1\n"
    "\t\t.amdhsa_next_free_vgpr 512\n\t\t.amdhsa_next_free_sgpr 96\n\t\t.amdhsa_accum_offset 256\n\t.end_amdhsa_kernel\n";

static sim_fault fail(sim_report *report, const char *why)
{
    memset(report, 0, sizeof *report);
    report->fault = SIM_BAD_LAUNCH;
    snprintf(report->text, sizeof report->text, "snippet: %s", why);
    return report->fault;
}

sim_fault snippet_run(const snippet *s, sim_report *report)
{
    char why[256];
    const size_t room = strlen(s->body) + sizeof descriptor + 256;
    char *text = malloc(room);
    if (text == NULL)
        return fail(report, "no memory");
    int n = snprintf(text, room, "\t.amdgcn_target \"amdgcn-amd-amdhsa--%s\"\n\t.text\nsnippet:\n%s", s->arch, s->body);
    snprintf(text + n, room - (size_t)n, descriptor, s->lds_bytes);
    sim_program *program = sim_parse(text, "snippet.s", why, sizeof why);
    free(text);
    sim_memory *memory = sim_memory_make();
    if (program == NULL || memory == NULL) {
        sim_drop(program);
        sim_memory_drop(memory);
        return fail(report, why);
    }
    const uint64_t addresses[2] = { sim_alloc(memory, s->n_out * 4, "out"), sim_alloc(memory, s->n_in * 4, "in") };
    const sim_kernel *kernel = sim_find(program, "snippet");
    sim_copy_in(memory, addresses[1], s->in, s->n_in * 4);
    sim_protect(memory, addresses[1], 1);
    sim_launch(memory, kernel, s->grid == 0 ? 1 : s->grid, 1, s->threads == 0 ? 64 : s->threads, 0, addresses, sizeof addresses, report);
    sim_copy_out(memory, s->out, addresses[0], s->n_out * 4);
    for (size_t i = 0; report->fault == SIM_OK && i < kernel->n_code; i++)
        has_run[kernel->code[i].op - op_table] = 1;
    sim_drop(program);
    sim_memory_drop(memory);
    return report->fault;
}

int snippet_has_run(size_t op_index) { return has_run[op_index]; }
