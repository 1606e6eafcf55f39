"""Tokens a second and peak memory of generate() on an NVIDIA GPU, random weights in bf16: transformers' cache with SDPA beside OctavoCache. Not a test: doc/TRANSFORMERS.md has what it printed."""
import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config, logging

import octavo.transformers

MODELS = {
    "SmolLM2's size": (LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
                                   max_position_embeddings=8192, tie_word_embeddings=True), 8, 4096),
    "4 layers of 32/2 heads x 256": (Qwen3Config(vocab_size=1024, hidden_size=2048, intermediate_size=4096, num_hidden_layers=4, num_attention_heads=32, num_key_value_heads=2,
                                                 head_dim=256, max_position_embeddings=65536), 16, 8192),
}


def timed(run):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def main(new=24):
    logging.set_verbosity_error()
    for title, (config, batch, tokens) in MODELS.items():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval().cuda()
        ids = torch.randint(3, 97, (batch, tokens), device="cuda")
        for kv in (None, "bf16", "e4m3", "i8"):
            model.set_attn_implementation("sdpa" if kv is None else "octavo")

            def generate(n, prompt=ids):
                cache = {} if kv is None else {"past_key_values": octavo.transformers.OctavoCache(config, kv)}
                model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=n, min_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0, **cache)

            generate(2, ids[:, :64])
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            weights = torch.cuda.memory_allocated()
            first = timed(lambda: generate(1))
            rest = timed(lambda: generate(new)) - first
            peak = (torch.cuda.max_memory_allocated() - weights) / 2**20
            name = "DynamicCache, sdpa" if kv is None else f"OctavoCache {kv}"
            print(f"{title}, batch {batch}, prompt {tokens}, {name}: prefill {first * 1e3:.0f} ms, {batch * (new - 1) / rest:.0f} tokens/s, peak above the weights {peak:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
