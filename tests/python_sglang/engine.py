"""One process of SGLang: runs of offline engines, from a JSON list on standard input to one on standard output. Not a test."""
import json
import sys

if __name__ == "__main__":
    import sglang

    results = []
    for job in json.load(sys.stdin):
        engine = sglang.Engine(model_path=job["model"], device="cpu", skip_tokenizer_init=True, cuda_graph_backend_decode="disabled", cuda_graph_backend_prefill="disabled",
                               mem_fraction_static=0.3, max_total_tokens=4096, max_running_requests=8, chunked_prefill_size=128, log_level="error", **job["options"])
        tokens, hits, logprobs = [], 0, []
        for prompts in job["batches"]:   # one after the other, so that the later find the earlier's prefixes
            outs = engine.generate(input_ids=prompts, sampling_params=dict(temperature=0, max_new_tokens=job["tokens"], ignore_eos=True))
            tokens += [o["output_ids"] for o in outs]
            hits += sum(o["meta_info"]["cached_tokens"] for o in outs)
        if job.get("logprobs"):
            engine.flush_cache()
            outs = engine.generate(input_ids=job["logprobs"], sampling_params=dict(temperature=0, max_new_tokens=1), return_logprob=True, logprob_start_len=0)
            logprobs = [[x[0] for x in o["meta_info"]["input_token_logprobs"][1:]] for o in outs]
        results.append(dict(tokens=tokens, logprobs=logprobs, hits=hits))
        engine.shutdown()
    print("\nRESULTS " + json.dumps(results), flush=True)
