"""One process of vLLM: runs of offline engines, from a JSON list on standard input to one on standard output. Not a test."""
import json
import sys

if __name__ == "__main__":
    from vllm import LLM, SamplingParams, TokensPrompt
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    results = []
    for job in json.load(sys.stdin):
        llm = LLM(job["model"], skip_tokenizer_init=True, enforce_eager=True, max_model_len=512, max_num_seqs=8, max_num_batched_tokens=128, block_size=32,
                  kv_cache_memory_bytes=1 << 27, disable_log_stats=False, enable_prefix_caching=True, enable_chunked_prefill=True, **job["options"])
        many = SamplingParams(temperature=0, max_tokens=job["tokens"], ignore_eos=True, detokenize=False, logprobs=2)
        tokens, best = [], []
        for prompts in job["batches"]:   # one after the other, so that the later find the earlier's prefixes
            for o in llm.generate([TokensPrompt(prompt_token_ids=p) for p in prompts], many, use_tqdm=False):
                tokens.append(list(o.outputs[0].token_ids))
                # Each step's two best, and how far apart they are.
                ranked = [sorted(((x.logprob, t) for t, x in at.items()), reverse=True) for at in o.outputs[0].logprobs]
                best.append([(r[0][1], r[1][1], r[0][0] - r[1][0]) for r in ranked])
        logprobs = []
        if job.get("logprobs"):
            once = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
            for p, o in zip(job["logprobs"], llm.generate([TokensPrompt(prompt_token_ids=p) for p in job["logprobs"]], once, use_tqdm=False)):
                logprobs.append([at[t].logprob for t, at in zip(p[1:], o.prompt_logprobs[1:])])
        judged = []
        if "judge" in job:   # an earlier job's texts, token by token: what this engine gives its 20 best and the token that stands there
            asked = [p for batch in job["batches"] for p in batch]
            once = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=20, detokenize=False)
            texts = [TokensPrompt(prompt_token_ids=p + t) for p, t in zip(asked, results[job["judge"]]["tokens"])]
            for p, o in zip(asked, llm.generate(texts, once, use_tqdm=False)):
                judged.append([{str(t): x.logprob for t, x in at.items()} for at in o.prompt_logprobs[len(p):]])
        hits = sum(m.value for m in llm.get_metrics() if m.name == "vllm:prefix_cache_hits")
        results.append(dict(tokens=tokens, best=best, logprobs=logprobs, judged=judged, backend=AttentionBackendEnum.CPU_ATTN.get_path(), hits=hits))
        del llm
    print("\nRESULTS " + json.dumps(results), flush=True)
