#!/usr/bin/env python3
"""Writes the first inputs of the fuzz targets: small right files of every kind, and a few wrong ones near them.

usage: make_seeds.py [FOLDER]     default: the corpus folders beside this script
"""
import json
import os
import struct
import sys

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, v):
    if kind == STRING:
        return text(v)
    if kind == ARRAY:
        inner, items = v
        return struct.pack("<IQ", inner, len(items)) + b"".join(value(inner, item) for item in items)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<B", U64: "<Q"}[kind], v)


def gguf(keys, tensors, version=3, alignment=32, n_keys=None, n_tensors=None):
    """keys: (name, kind, value); tensors: (name, dims, type, bytes)."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys)
    for name, kind, v in keys:
        out += text(name) + struct.pack("<I", kind) + value(kind, v)
    offset, data = 0, b""
    for name, dims, kind, size in tensors:
        out += text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", kind, offset)
        data += bytes(size) + bytes(-size % alignment)
        offset = len(data)
    return out + bytes(-len(out) % alignment) + data


def hparams(arch, **more):
    keys = [("general.architecture", STRING, arch), ("general.name", STRING, "seed")]
    base = {"block_count": 2, "context_length": 128, "embedding_length": 32, "feed_forward_length": 64, "attention.head_count": 2, "attention.head_count_kv": 1}
    keys += [(f"{arch}.{k}", U32, v) for k, v in base.items()]
    keys += [(f"{arch}.attention.layer_norm_rms_epsilon", F32, 1e-5), (f"{arch}.rope.freq_base", F32, 10000.0)]
    return keys + [(f"{arch}.{k}", kind, v) for k, (kind, v) in more.items()]


def gguf_seeds():
    tensors = [("token_embd.weight", [32, 4], 0, 512), ("blk.0.attn_q.weight", [32, 2], 1, 128), ("output.weight", [32, 4], 8, 136)]
    yield "empty", b""
    yield "magic", b"GGUF"
    yield "none", gguf([], [])
    yield "llama", gguf(hparams("llama"), tensors)
    yield "llama_scaled", gguf(hparams("llama", **{"rope.scaling.type": (STRING, "linear"), "rope.scaling.factor": (F32, 4.0)}), tensors)
    yield "qwen2", gguf(hparams("qwen2", **{"attention.head_count": (ARRAY, (U32, [2, 2]))}), tensors)
    yield "qwen3", gguf(hparams("qwen3", **{"attention.key_length": (U32, 16), "attention.value_length": (U32, 16)}), tensors)
    yield "gemma3", gguf(hparams("gemma3", **{"attention.sliding_window": (U32, 16), "attention.sliding_window_pattern": (ARRAY, (BOOL, [1, 0]))}), tensors)
    yield "vocabulary", gguf([("tokenizer.ggml.tokens", ARRAY, (STRING, ["<unk>", "", "a"])), ("tokenizer.ggml.scores", ARRAY, (F32, [0.0, -1.0, 2.0])),
                              ("tokenizer.ggml.token_type", ARRAY, (I32, [2, 3, 1])), ("general.alignment", U32, 64)], tensors[:1], alignment=64)
    byte_tokens = ["<unk>", "<s>"] + [f"<0x{b:02X}>" for b in range(256)]
    yield "spm", gguf(hparams("llama") + [("tokenizer.ggml.model", STRING, "llama"), ("tokenizer.ggml.tokens", ARRAY, (STRING, byte_tokens)),
                                          ("tokenizer.ggml.token_type", ARRAY, (I32, [2, 3] + [6] * 256)), ("tokenizer.ggml.add_bos_token", BOOL, 1)], [])
    yield "bpe", gguf(hparams("qwen2") + [("tokenizer.ggml.model", STRING, "gpt2"), ("tokenizer.ggml.pre", STRING, "qwen2"),
                                          ("tokenizer.ggml.tokens", ARRAY, (STRING, ["a", "b", "ab"])), ("tokenizer.ggml.merges", ARRAY, (STRING, ["a b"]))], [])
    yield "version2", gguf(hparams("llama"), tensors, version=2)
    yield "counts", gguf(hparams("llama"), tensors, n_keys=1 << 63, n_tensors=1 << 60)
    yield "wraps", gguf([], [("t", [1152, (1 << 42) + 1], 0, 4608)])
    yield "alignment0", gguf([("general.alignment", U32, 0)], tensors)
    yield "twice", gguf([], [tensors[0], tensors[0]])
    yield "nested", gguf([("deep", ARRAY, (ARRAY, [(ARRAY, [(U32, [1])])]))], [])


def scales_seeds():
    layers = {str(i): 0.01 * (i + 1) for i in range(3)}
    base = {"model_type": "llama", "kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"0": layers}}}

    def ours(**more):
        side = {"layer": [1, 2, 3], "head": [[1, 2], [3, 4], [5, 6]], "channel": [[[1, 2], [3, 4]]] * 3}
        return {**base, "octavo": {"version": 1, "heads": 2, "dim": 2, "rotated": [True, False], "k": side, "v": side, **more}}

    yield "plain", base
    yield "ranks", {"kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"0": layers, "1": layers}}}
    yield "ours", ours()
    yield "ours_layers", {**base, "octavo": {"version": 1, "k": {"layer": [1, 2, 3]}, "v": {"layer": [1, 2, 3]}}}
    yield "heads_wrong", ours(heads=3)
    yield "formats", ours(version=2, formats={"k": ["i8+rot", "f16", "e4m3:channel"], "v": ["e4m3fn:layer", "f16", "i8:token32"]})
    yield "formats_v4", ours(version=2, formats={"k": ["i8+rot", "f16", "i8:token"], "v": ["v4+rot", "f16", "v4"]})
    yield "formats_v4_k", ours(version=2, formats={"k": ["v4+rot", "f16", "i8"], "v": ["v4+rot", "f16", "v4"]})
    yield "formats_wrong", ours(version=2, formats={"k": ["i8+rot", "f16", "q5"], "v": ["e4m3fn:layer", "f16"]})
    yield "zero", {"kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"0": {"0": 0}}}}
    yield "gap", {"kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"0": {"0": 1, "2": 1}}}}
    yield "dtype", {"kv_cache": {"dtype": "int8", "scaling_factor": {}}}


def v4_seeds():
    """A byte that says whether V is rotated, then numbers that are blocks too (v4_fuzz.c)."""
    def block(scale, codes):
        return struct.pack("<H", scale) + bytes(codes)
    def floats(numbers):
        return struct.pack(f"<{len(numbers)}f", *numbers)
    ramp = [(i * 37 % 255 - 127) for i in range(512)]
    nan, inf = float("nan"), float("inf")
    yield "empty", b""
    yield "flags", b"\x03"
    yield "ramp", b"\x00" + floats(ramp)
    yield "ramp_rotated", b"\x01" + floats(ramp)
    yield "halves", b"\x02" + floats([x + 0.5 for x in ramp])                # ties on the way to whole numbers
    yield "special", b"\x00" + floats(([nan] + [1.0] * 31 + [inf, -inf] + [2.0] * 30 + [-nan] * 32 + [1e38, 1e-38] * 16 + [-0.0] * 32) * 3)
    yield "special_rotated", b"\x01" + floats([1.0] * 63 + [nan] + [3.0] * 63 + [inf])
    yield "large", b"\x00" + floats([8.3e6, -8.3e6, 8.4e6, 1.0] * 128)      # about the largest scale of f16
    yield "small", b"\x00" + floats([1e-4, -1.27e-4, 1e-45, 2e-7] * 128)    # about the least
    yield "blocks", b"\x00" + b"".join(block(0x3C00 + 64 * i, [(i * 16 + j * 17) & 255 for j in range(16)]) for i in range(16))
    yield "scales", b"\x00" + b"".join(block(scale, range(0, 256, 16)) for scale in (0, 1, 0x03FF, 0x0400, 0x7BFF, 0x7C00, 0x7E00, 0x7C01, 0x8000, 0xBC00, 0xFC00, 0xFE00, 0xFFFF, 0x3C00, 0x11, 0x7800))


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    for kind, seeds in (("gguf", gguf_seeds()), ("scales", ((n, json.dumps(v).encode()) for n, v in scales_seeds())), ("v4", v4_seeds())):
        target = os.path.join(folder, f"corpus_{kind}")
        os.makedirs(target, exist_ok=True)
        for name, data in seeds:
            with open(os.path.join(target, name), "wb") as file:
                file.write(data)


if __name__ == "__main__":
    main()
