/* html.h: owns the report as one HTML file that fetches nothing and runs nothing: pictures are SVG within it, and every number of the JSON stands in it. One thread
 * a report. */
#ifndef APP_EVAL_HTML_H
#define APP_EVAL_HTML_H

#include "apps/eval/result.h"

/* Adds the page. Whatever texts the result holds, they stay text. */
void eval_report_html(const eval_result *result, app_text *text);

/* ---- for html_*.c ------------------------------------------------------------------------------------------------------------------------- */

/* A string as text or as the value of an attribute in double quotes. What XML can't hold, control characters and characters that turn the direction of what
 * follows come out as U+FFFD or by their number. NULL: nothing. */
void eval_html_text(app_text *text, const char *string);

/* A number for people in a <data> with the JSON's digits. format: as of printf, of one double. NAN: a dash. */
void eval_html_number(app_text *text, const char *format, double value);

/* The words of a picture: what it is called and what it shows. Opens <figure> with <svg>; figure_end closes both. Sizes are in units of the picture, which is
 * drawn as wide as the page lets it. id: of letters and digits, once a page. */
void eval_html_figure(app_text *text, const char *id, const char *title, const char *description, int width, int height);
void eval_html_figure_end(app_text *text, const char *caption);

/* A word in a picture. anchor: "start", "middle", "end". */
void eval_svg_text(app_text *text, double x, double y, const char *anchor, const char *string);

/* A format's sign at a place: a shape of its own for each, so that none needs a colour. */
void eval_svg_sign(app_text *text, uint32_t format, double x, double y);

/* A value's place between two ends, linear or logarithmic. */
typedef struct eval_axis { double least, most, from, to; bool is_log; } eval_axis;
double eval_axis_at(const eval_axis *axis, double value);

/* Ends that hold both numbers and are round. */
eval_axis eval_axis_make(double least, double most, bool is_log, double from, double to);

/* Lines and numbers at round places. vertical: the axis runs up. across: how far the lines run. unit: behind the numbers. */
void eval_svg_axis(app_text *text, const eval_axis *axis, bool vertical, double at, double across, const char *unit);

/* The parts. p: number of the pass, for ids. */
void eval_html_quality(const eval_result *result, const eval_pass *pass, uint32_t p, app_text *text);
void eval_html_positions(const eval_result *result, const eval_pass *pass, uint32_t p, app_text *text);
void eval_html_tasks(const eval_result *result, const eval_pass *pass, uint32_t p, app_text *text);
void eval_html_greedy(const eval_result *result, const eval_pass *pass, uint32_t p, app_text *text);
void eval_html_cells(const eval_result *result, const eval_task *task, app_text *text);
void eval_html_worst(const eval_result *result, const eval_pass *pass, app_text *text);
void eval_html_inside(const eval_result *result, const eval_pass *pass, uint32_t p, app_text *text);
void eval_html_all(const eval_result *result, app_text *text);

#endif
