/* What a vocabulary is made of, for vocab.c and sampler.c. */
#ifndef OCTE_VOCAB_STATE_H
#define OCTE_VOCAB_STATE_H

#include <llama.h>

#include "engine/vocab.h"

struct octe_vocab {
    struct llama_model *model;             /* vocabulary only */
    const struct llama_vocab *vocab;
};

#endif
