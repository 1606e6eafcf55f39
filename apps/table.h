/* table.h: owns tables of short cells, for people (columns aligned) and for pages (Markdown). One thread a table. */
#ifndef APP_TABLE_H
#define APP_TABLE_H

#include <stdint.h>

#include "apps/text.h"

enum { APP_TABLE_MAX_COLUMNS = 16, APP_TABLE_MAX_CELLS = 8192 };

/* Zero-initialise; name all columns, then add cells row by row. */
typedef struct app_table {
    uint32_t n_columns, n_cells;
    bool left[APP_TABLE_MAX_COLUMNS];
    char *cells[APP_TABLE_MAX_CELLS];      /* the heads first */
    bool failed;                           /* out of memory or out of cells; the rendered text fails with it */
} app_table;

/* A head may have two lines ("prefill\n0 / 2048"); Markdown joins them. */
void app_table_column(app_table *table, const char *head, bool left);
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void app_table_cell(app_table *table, const char *format, ...);
void app_table_small(app_table *table, double value);   /* "2.1e-4"; 0 is "0" */
void app_table_text(const app_table *table, app_text *text);
void app_table_markdown(const app_table *table, app_text *text);
void app_table_free(app_table *table);

#endif
