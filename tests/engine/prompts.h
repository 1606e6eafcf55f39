/* Texts for the tests on real models: twenty prompts of several kinds, the last one long. All written for this repository. */
#ifndef TEST_PROMPTS_H
#define TEST_PROMPTS_H

enum { N_PROMPTS = 20 };

/* Prompt i of N_PROMPTS; the last has some 1,500 tokens. Static storage. */
const char *prompt_at(int i);

#endif
