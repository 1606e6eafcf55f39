/* table.c: see table.h. */
#include "apps/table.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add(app_table *table, const char *format, va_list arguments)
{
    va_list again;
    va_copy(again, arguments);
    const int length = vsnprintf(NULL, 0, format, arguments);
    char *const cell = length >= 0 && table->n_cells < APP_TABLE_MAX_CELLS ? malloc((size_t)length + 1) : NULL;
    if (cell == NULL) {
        table->failed = true;
    } else {
        (void)vsnprintf(cell, (size_t)length + 1, format, again);
        table->cells[table->n_cells++] = cell;
    }
    va_end(again);
}

void app_table_cell(app_table *table, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    add(table, format, arguments);
    va_end(arguments);
}

/* printf's exponent has two digits at least. */
void app_table_small(app_table *table, double value)
{
    char number[32];
    if (value == 0) {
        app_table_cell(table, "0");
        return;
    }
    (void)snprintf(number, sizeof(number), "%.1e", value);
    const char *const e = strchr(number, 'e');
    if (e == NULL) {
        app_table_cell(table, "%s", number);   /* nan */
        return;
    }
    int exponent = 0;
    (void)sscanf(e + 1, "%d", &exponent);
    app_table_cell(table, "%.*se%d", (int)(e - number), number, exponent);
}

void app_table_column(app_table *table, const char *head, bool left)
{
    if (table->n_columns == APP_TABLE_MAX_COLUMNS) {
        table->failed = true;
        return;
    }
    table->left[table->n_columns++] = left;
    app_table_cell(table, "%s", head);
}

/* Line 0 or 1 of a cell, in line where there are two. */
static const char *line_of(const char *cell, int number, char line[128])
{
    const char *const second = strchr(cell, '\n');
    if (number == 1) {
        return second != NULL ? second + 1 : "";
    }
    if (second == NULL) {
        return cell;
    }
    (void)snprintf(line, 128, "%.*s", (int)(second - cell), cell);   /* a head's */
    return line;
}

static int width_of(const app_table *table, uint32_t column)
{
    char line[128];
    size_t width = 0;
    for (uint32_t i = column; i < table->n_cells; i += table->n_columns) {
        for (int number = 0; number < 2; number++) {
            const size_t columns = app_text_columns(line_of(table->cells[i], number, line));
            width = columns > width ? columns : width;
        }
    }
    return (int)width;
}

static void add_line(const app_table *table, app_text *text, uint32_t row, int number)
{
    char line[128];
    for (uint32_t c = 0; c < table->n_columns; c++) {
        const char *cell = line_of(table->cells[row * table->n_columns + c], number, line);
        const int width = width_of(table, c);
        app_text_add(text, "%s", c > 0 ? "  " : "");
        /* No blanks at a line's end. */
        app_text_add_padded(text, cell, !table->left[c] ? -width : c + 1 < table->n_columns ? width : 0);
    }
    while (!text->failed && text->length > 0 && text->bytes[text->length - 1] == ' ') {
        text->bytes[--text->length] = '\0';
    }
    app_text_add(text, "\n");
}

static uint32_t n_rows(const app_table *table, app_text *text)
{
    text->failed |= table->failed;
    return table->failed ? 0 : table->n_cells / table->n_columns;
}

void app_table_text(const app_table *table, app_text *text)
{
    const uint32_t rows = n_rows(table, text);
    bool two = false;
    for (uint32_t c = 0; c < table->n_columns && rows > 0; c++) {
        two |= strchr(table->cells[c], '\n') != NULL;
    }
    for (uint32_t r = 0; r < rows; r++) {
        add_line(table, text, r, 0);
        if (r == 0 && two) {
            add_line(table, text, r, 1);
        }
    }
}

void app_table_markdown(const app_table *table, app_text *text)
{
    const uint32_t rows = n_rows(table, text);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < table->n_columns; c++) {
            app_text_add(text, "| ");
            app_text_add_markdown(text, table->cells[r * table->n_columns + c]);
            app_text_add(text, " ");
        }
        app_text_add(text, "|\n");
        for (uint32_t c = 0; c < table->n_columns && r == 0; c++) {
            app_text_add(text, "%s", table->left[c] ? "|---" : "|---:");
        }
        app_text_add(text, "%s", r == 0 ? "|\n" : "");
    }
}

void app_table_free(app_table *table)
{
    for (uint32_t i = 0; i < table->n_cells; i++) {
        free(table->cells[i]);
    }
    *table = (app_table){ 0 };
}
