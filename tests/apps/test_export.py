"""octavo export-hf: a checkpoint's files read back from the format's description alone. tests/python_transformers and tests/python_vllm load real ones."""
import json
import struct

import numpy as np
import pytest

import tiny_gguf

FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    assert length % 8 == 0 and header.pop("__metadata__") == {"format": "pt"}
    tensors, at = {}, 0
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = data[8 + length + begin:8 + length + end]
        assert begin == at, "tensors lie one after the other"
        at = end
        if entry["dtype"] == "BF16":
            content = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            content = np.frombuffer(raw, {"F16": np.float16, "F32": np.float32}[entry["dtype"]]).astype(np.float32)
        tensors[name] = content.reshape(entry["shape"])
    assert 8 + length + at == len(data)
    return tensors


def halves(rows, dim):
    """Rows of q or k whose rotated pairs a GGUF of llama has side by side, as a checkpoint has them: first of each pair, then second."""
    heads = rows.reshape(-1, dim // 2, 2, rows.shape[-1])
    return heads.transpose(0, 2, 1, 3).reshape(rows.shape)


# What a checkpoint calls a GGUF's tensors, from transformers' modelling files.
NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
         "post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}


def add_own(architecture, tensors):
    """What qwen2 and qwen3 have beside the rest: biases of q, k and v, norms of q and k."""
    random = np.random.default_rng(11)
    for layer in range(3):
        for part, n in (("attn_q", 128), ("attn_k", 64), ("attn_v", 64)) if architecture == "qwen2" else ():
            tensors[f"blk.{layer}.{part}.bias"] = random.standard_normal(n).astype(np.float32)
        for part in ("attn_q_norm", "attn_k_norm") if architecture == "qwen3" else ():
            tensors[f"blk.{layer}.{part}.weight"] = random.standard_normal(32).astype(np.float32)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_every_weight_in_its_place(octavo, tmp_path, architecture):
    model = tiny_gguf.write(tmp_path / "tiny.gguf", architecture=architecture, chat=True, add_bos=True, edit=lambda tensors: add_own(architecture, tensors))
    folder = tmp_path / "out"
    said = octavo("export-hf", "-m", model, "-o", folder, "--dtype", "f32").out
    assert {path.name for path in folder.iterdir()} == FILES and {path.name for path in tmp_path.iterdir()} == {"tiny.gguf", "out"}
    sizes = dict(layers=6 if architecture == "gemma3" else 3, embd=64, ff=96, heads=4, heads_kv=2, dim=32)
    _, _, n_vocab = tiny_gguf.keys_of(architecture, sizes | {"context": 512, "window": 0}, False, None)
    source = tiny_gguf.tensors_of(architecture, sizes, n_vocab, np.random.default_rng(7))
    add_own(architecture, source)
    got = safetensors(folder / "model.safetensors")
    assert len(got) == len(source) and f"{len(source)} tensors in f32" in said
    for name, content in source.items():
        if name.startswith("blk."):
            _, layer, part, kind = name.split(".")
            other = NAMES.get(part) or ("pre_feedforward_layernorm" if architecture == "gemma3" else "post_attention_layernorm")
            target = f"model.layers.{layer}.{other}.{kind}"
            if architecture == "llama" and part in ("attn_q", "attn_k"):
                content = halves(content, 32)
        else:
            target = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[name]
        if architecture == "gemma3" and "norm" in name:
            content = content - 1
        assert np.array_equal(got[target], content), name
    config = json.loads((folder / "config.json").read_text())
    assert config["num_hidden_layers"] == sizes["layers"] and config["head_dim"] == 32 and config["num_key_value_heads"] == 2 and config["intermediate_size"] == 96
    assert config["tie_word_embeddings"] is True and config["rms_norm_eps"] == 1e-5 and config["vocab_size"] == n_vocab and config["dtype"] == "float32"
    if architecture == "gemma3":
        assert config["architectures"] == ["Gemma3ForCausalLM"] and config["sliding_window"] == 48 and config["query_pre_attn_scalar"] == 32
        assert config["layer_types"] == ["sliding_attention"] * 5 + ["full_attention"]
        assert config["rope_parameters"]["sliding_attention"] == {"rope_type": "default", "rope_theta": 10000.0}
    else:
        assert config["architectures"] == [f"{architecture.capitalize()}ForCausalLM"] and config["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = tiny_gguf.byte_letters() + ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert tokenizer["model"]["vocab"] == {text: i for i, text in enumerate(vocab)} and tokenizer["model"]["merges"] == []
    assert [(t["id"], t["content"], t["special"]) for t in tokenizer["added_tokens"]] == [(i, vocab[i], True) for i in (256, 257, 258)]
    assert tokenizer["post_processor"]["special_tokens"]["<|endoftext|>"]["ids"] == [256]
    assert json.loads((folder / "tokenizer_config.json").read_text())["chat_template"] == tiny_gguf.CHATML


def test_sixteen_bits_round_to_nearest_even(octavo, tiny, tmp_path):
    whole = None
    for dtype in ("f32", "bf16", "f16"):
        octavo("export-hf", "-m", tiny, "-o", tmp_path / dtype, "--dtype", dtype)
        got = safetensors(tmp_path / dtype / "model.safetensors")
        whole = whole or got
        for name, content in whole.items():
            if dtype == "f16":
                content = content.astype(np.float16).astype(np.float32)
            elif dtype == "bf16":
                bits = content.view(np.uint32).astype(np.uint64)
                content = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
            assert np.array_equal(got[name], content), (dtype, name)


def test_whole_or_not_at_all(octavo, tiny, tmp_path):
    (tmp_path / "empty").mkdir()
    octavo("export-hf", "-m", tiny, "-o", f"{tmp_path}/empty/")
    assert {path.name for path in (tmp_path / "empty").iterdir()} == FILES
    failed = octavo("export-hf", "-m", tiny, "-o", tmp_path / "empty", check=1)
    assert "not empty" in failed.err and {path.name for path in tmp_path.iterdir()} == {"empty"}
    assert "can't be made" in octavo("export-hf", "-m", tiny, "-o", tmp_path / "no" / "where", check=1).err
    assert "no.gguf" in octavo("export-hf", "-m", tmp_path / "no.gguf", "-o", tmp_path / "x", check=1).err
    full = octavo("export-hf", "-m", tiny, "-o", tmp_path / "full", check=1, preexec_fn=small_files)
    assert "model.safetensors" in full.err and {path.name for path in tmp_path.iterdir()} == {"empty"}


def small_files():
    import resource
    import signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def pieces_model(path, **changed):
    """A vocabulary as SentencePiece makes it, in a model of no sense otherwise."""
    pieces = [("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3), ("<0x41>", 0, 6), ("\u2581a", -1, 1), ("ab", -2, 1), ("\u2581ab", -3, 1), ("\u00e9b", -4, 1), ("a", -5, 1),
              ("b", -6, 1), ("\u2581", -7, 1), ("\u00e9", -8, 1), ("<user>", 0, 4), ("\u2581\u2581", -9, 4), ("fill", 0, 5)]
    original, string_array = tiny_gguf.keys_of, tiny_gguf.array

    def keys_of(architecture, sizes, chat, add_bos):
        encoded, n, _ = original(architecture, sizes, chat, add_bos)
        names = {"tokenizer.ggml.model": tiny_gguf.key("tokenizer.ggml.model", tiny_gguf.STRING, "llama"),
                 "tokenizer.ggml.tokens": string_array("tokenizer.ggml.tokens", tiny_gguf.STRING, [p[0] for p in pieces]),
                 "tokenizer.ggml.token_type": string_array("tokenizer.ggml.token_type", tiny_gguf.I32, [p[2] for p in pieces])}
        old = {"tokenizer.ggml.model": tiny_gguf.key("tokenizer.ggml.model", tiny_gguf.STRING, "gpt2"),
               "tokenizer.ggml.tokens": string_array("tokenizer.ggml.tokens", tiny_gguf.STRING, tiny_gguf.byte_letters() + ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
               "tokenizer.ggml.token_type": string_array("tokenizer.ggml.token_type", tiny_gguf.I32, [1] * 256 + [3] * 3)}
        for name, content in names.items():
            assert old[name] in encoded
            encoded = encoded.replace(old[name], content)
        for name, content in (("bos", 1), ("eos", 2)):
            encoded = encoded.replace(tiny_gguf.key(f"tokenizer.ggml.{name}_token_id", tiny_gguf.U32, 256), tiny_gguf.key(f"tokenizer.ggml.{name}_token_id", tiny_gguf.U32, content))
        more = [string_array("tokenizer.ggml.scores", tiny_gguf.F32, [p[1] for p in pieces]), tiny_gguf.key("tokenizer.ggml.unknown_token_id", tiny_gguf.U32, 0),
                tiny_gguf.key("tokenizer.ggml.add_space_prefix", tiny_gguf.BOOL, changed.get("prefix", False))]
        return encoded + b"".join(more), n + len(more), len(pieces)

    tiny_gguf.keys_of = keys_of
    try:
        return tiny_gguf.write(path, architecture="gemma3", add_bos=True)
    finally:
        tiny_gguf.keys_of = original


def test_pieces_become_merges(octavo, tmp_path):
    octavo("export-hf", "-m", pieces_model(tmp_path / "p.gguf"), "-o", tmp_path / "out")
    tokenizer = json.loads((tmp_path / "out" / "tokenizer.json").read_text())
    model = tokenizer["model"]
    assert model["byte_fallback"] is True and model["unk_token"] == "<unk>" and "fill" not in model["vocab"] and model["vocab"]["\u2581ab"] == 6
    # Best score first; of one piece the longest left half first; never inside a character.
    assert model["merges"] == [["\u2581", "a"], ["a", "b"], ["\u2581a", "b"], ["\u2581", "ab"], ["\u00e9", "b"], ["\u2581", "\u2581"]]
    assert [(t["content"], t["special"]) for t in tokenizer["added_tokens"]] == [("<unk>", True), ("<s>", True), ("</s>", True), ("<user>", False)]
    assert tokenizer["normalizer"] == {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    octavo("export-hf", "-m", pieces_model(tmp_path / "p2.gguf", prefix=True), "-o", tmp_path / "out2")
    tokenizer = json.loads((tmp_path / "out2" / "tokenizer.json").read_text())
    assert tokenizer["normalizer"]["normalizers"][0] == {"type": "Prepend", "prepend": "\u2581"} and tokenizer["decoder"]["decoders"][-1]["type"] == "Strip"
