"""What the suites on real engines share: small random checkpoints that transformers, vLLM and SGLang load, prompts for them, and calibration files."""
import json

# One vocabulary and one text config for all, as small as the engines' own kernels take them.
SMALL = dict(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
             max_position_embeddings=1024, pad_token_id=0, bos_token_id=1, eos_token_id=2)
WINDOWS = ["sliding_attention", "full_attention", "sliding_attention"]


def configs():
    """By name: full attention; windows (SGLang keeps them in a pool of their own); windows and sinks, all experts at work, since a choice among them jumps."""
    import transformers
    return {"llama": transformers.LlamaConfig(**SMALL),
            "gemma3": transformers.Gemma3TextConfig(**SMALL, sliding_window=24, query_pre_attn_scalar=64, layer_types=WINDOWS),
            "gpt_oss": transformers.GptOssConfig(**{**SMALL, "intermediate_size": 128}, sliding_window=24, layer_types=WINDOWS, num_local_experts=4, num_experts_per_tok=4)}


def sharpen(model, by):
    """Weights that make attention matter: scores of some units, and sinks of their size."""
    import torch
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if "q_proj.weight" in key or "k_proj.weight" in key:
                weight.mul_(by)
            if "sinks" in key:
                weight.normal_()
    return model


def close_on(device):
    """Of outputs, |v| of some units: what kernels keep of q, P and the sum in f32, and a GPU's in 16 bits."""
    return 1e-5 if device == "cpu" else 5e-3


def tensors_on(device):
    """A fixture for every test of a file: what torch makes lies on the device."""
    import pytest
    import torch

    @pytest.fixture(autouse=True)
    def on_the_device():
        with torch.device(device):
            yield
    return on_the_device


def save(name, folder):
    """The model as a checkpoint in a folder, which is returned: weights of a seed, scores of some units, sinks of their size."""
    import torch
    import transformers
    torch.manual_seed(6)
    sharpen(transformers.AutoModelForCausalLM.from_config(configs()[name], dtype=torch.float32), 8).save_pretrained(folder)
    return str(folder)


def prompts(n=20, vocab=SMALL["vocab_size"]):
    """n prompts of 5 to 200 tokens in two batches; the second begins with the first's."""
    import torch
    g = torch.Generator().manual_seed(8)
    first = [torch.randint(3, vocab, (int(torch.randint(5, 200, (1,), generator=g)),), generator=g).tolist() for _ in range(n // 2)]
    return [first, [p + [7, 8, 9] for p in first[:n - n // 2]]]


def calibration(path, scales, k="e4m3fn:layer", v=None, **root):
    """A calibration file of version 2, and its path. scales: (K's, V's) of each layer; k, v: what all layers are kept in, or a list of each."""
    k, v = ([form] * len(scales) if isinstance(form, str) else form for form in (k, k if v is None else v))
    assert len(k) == len(v) == len(scales)
    file = {"kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"0": {str(i): max(s) for i, s in enumerate(scales)}}},
            "octavo": {"version": 2, "heads": 2, "rotated": [False, False], "formats": {"k": k, "v": v}, "k": {"layer": [s[0] for s in scales]}, "v": {"layer": [s[1] for s in scales]}}, **root}
    path.write_text(json.dumps(file))
    return str(path)
