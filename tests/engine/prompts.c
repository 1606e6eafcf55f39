/* prompts.c: see prompts.h. */
#include "engine/prompts.h"

#include <stdio.h>
#include <string.h>

static const char *const prompts[N_PROMPTS - 1] = {
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at a lower temperature on a mountain because",
    "Question: What is 17 + 25?\nAnswer:",
    "The three states of matter are solid,",
    "Dear Sir or Madam,\n\nI am writing to",
    "List of planets, from the Sun outwards:\n1. Mercury\n2. Venus\n3.",
    "Der schnelle braune Fuchs",
    "for (int i = 0; i < n; i++) {\n    sum +=",
    "A lighthouse keeper's day begins before dawn. First he",
    "SELECT name, price FROM products WHERE",
    "To bake bread you need flour, water, salt and",
    "Le chat est assis sur",
    "{\"name\": \"Ada\", \"born\": 1815, \"known_for\":",
    "The train left the station at nine o'clock and arrived at noon. The journey took",
    "Roses are red, violets are blue,",
    "In geometry, the sum of the angles of a triangle is",
    "He opened the old box, and inside it he found a letter that said:",
};

/* Short notes that differ, some 1,480 tokens: enough for windows of 512 to have let most of them go. */
enum { N_NOTES = 34 };

static const char *long_prompt(void)
{
    static char text[16384];
    static const char *const who[] = {"a sailor", "the miller", "an old teacher", "two sisters", "the clockmaker", "a young painter", "the ferryman"};
    static const char *const what[] = {"counted the boats in the harbour", "mended a broken wheel", "wrote a letter to the king", "planted apple trees along the road",
                                       "told the story of the great flood"};
    static const char *const when[] = {"before the first snow", "on a quiet afternoon", "while the rain fell"};
    size_t n = (size_t)snprintf(text, sizeof(text), "The chronicle of the valley, in many notes.\n");
    for (int i = 0; i < N_NOTES; i++) {
        n += (size_t)snprintf(text + n, sizeof(text) - n, "Note %d. In the year %d, %s, %s %s. The harvest brought %d baskets, and the bridge held.\n", i + 1, 1620 + 3 * i,
                              when[i % 3], who[i % 7], what[i % 5], 40 + i * 13 % 57);
    }
    snprintf(text + n, sizeof(text) - n, "The chronicle ends here. Looking back over all these years, the most important thing in the valley was");
    return text;
}

const char *prompt_at(int i) { return i < N_PROMPTS - 1 ? prompts[i] : long_prompt(); }
