"""Tiny models as GGUF files: random weights from a seed, a vocabulary of single bytes. Written from the format's description alone,
so that the readers under test meet a file that none of their own code made."""
import struct

import numpy

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
ALIGNMENT = 32
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def byte_letters():
    """GPT-2's letters for the 256 bytes: printable ones stand for themselves, the others move up to 256 and on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters, moved = {}, 0
    for byte in range(256):
        if byte in plain:
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(256 + moved)
            moved += 1
    return [letters[byte] for byte in range(256)]


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, content):
    if kind == STRING:
        return string(content)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], content)


def key(name, kind, content):
    return string(name) + struct.pack("<I", kind) + value(kind, content)


def array(name, kind, contents):
    return string(name) + struct.pack("<IIQ", ARRAY, kind, len(contents)) + b"".join(value(kind, content) for content in contents)


def keys_of(architecture, sizes, chat, add_bos):
    """All metadata, encoded, and their number."""
    own = {"block_count": sizes["layers"], "context_length": sizes["context"], "embedding_length": sizes["embd"], "feed_forward_length": sizes["ff"],
           "attention.head_count": sizes["heads"], "attention.head_count_kv": sizes["heads_kv"], "attention.key_length": sizes["dim"],
           "attention.value_length": sizes["dim"]}
    if sizes["window"]:
        own["attention.sliding_window"] = sizes["window"]
    tokens = byte_letters() + ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    encoded = [key("general.architecture", STRING, architecture), key("general.name", STRING, "tiny \"model\"")]
    encoded += [key(f"{architecture}.{name}", U32, content) for name, content in own.items()]
    encoded += [key(f"{architecture}.attention.layer_norm_rms_epsilon", F32, 1e-5), key(f"{architecture}.rope.freq_base", F32, 10000.0),
                key("tokenizer.ggml.model", STRING, "gpt2"), key("tokenizer.ggml.pre", STRING, "gpt-2"), array("tokenizer.ggml.tokens", STRING, tokens),
                array("tokenizer.ggml.token_type", I32, [1] * 256 + [3] * 3), array("tokenizer.ggml.merges", STRING, []),
                key("tokenizer.ggml.bos_token_id", U32, 256), key("tokenizer.ggml.eos_token_id", U32, 256)]
    if add_bos is not None:
        encoded.append(key("tokenizer.ggml.add_bos_token", BOOL, add_bos))
    if chat:
        encoded.append(key("tokenizer.chat_template", STRING, CHATML if chat is True else chat))
    return b"".join(encoded), len(encoded), len(tokens)


def tensors_of(architecture, sizes, n_vocab, random):
    def weights(*shape):
        return (random.standard_normal(shape) * shape[-1] ** -0.5).astype(numpy.float32)

    q, kv = sizes["heads"] * sizes["dim"], sizes["heads_kv"] * sizes["dim"]
    ones = numpy.ones(sizes["embd"], numpy.float32)
    tensors = {"token_embd.weight": weights(n_vocab, sizes["embd"]), "output_norm.weight": ones}
    for layer in range(sizes["layers"]):
        block = {"attn_norm": ones, "attn_q": weights(q, sizes["embd"]), "attn_k": weights(kv, sizes["embd"]), "attn_v": weights(kv, sizes["embd"]),
                 "attn_output": weights(sizes["embd"], q), "ffn_norm": ones, "ffn_gate": weights(sizes["ff"], sizes["embd"]),
                 "ffn_up": weights(sizes["ff"], sizes["embd"]), "ffn_down": weights(sizes["embd"], sizes["ff"])}
        if architecture == "gemma3":
            block |= {"attn_q_norm": numpy.ones(sizes["dim"], numpy.float32), "attn_k_norm": numpy.ones(sizes["dim"], numpy.float32),
                      "post_attention_norm": ones, "post_ffw_norm": ones}
        tensors |= {f"blk.{layer}.{name}.weight": content for name, content in block.items()}
    return tensors


Q8_0 = 8


def q8_0(content):
    """Blocks of 32: a scale in f16, then whole numbers of 8 bits."""
    blocks = content.reshape(-1, 32)
    scale = (abs(blocks).max(axis=1, keepdims=True) / 127).astype(numpy.float16)
    whole = numpy.rint(blocks / numpy.maximum(scale.astype(numpy.float32), 1e-12)).clip(-127, 127).astype(numpy.int8)
    return b"".join(s.tobytes() + w.tobytes() for s, w in zip(scale, whole))


def write(path, architecture="llama", chat=False, seed=7, add_bos=False, edit=None, quantized=False, **changed):
    """A model of 3 (gemma3: 6) layers, 4 query and 2 KV heads of 32, 512 tokens of context. edit: changes its tensors by name. quantized: matrices in Q8_0, else all in F32."""
    sizes = {"layers": 3, "context": 512, "embd": 64, "ff": 96, "heads": 4, "heads_kv": 2, "dim": 32, "window": 0} | changed
    if architecture == "gemma3":
        sizes |= {"layers": 6, "window": changed.get("window", 48)}
    random = numpy.random.default_rng(seed)
    keys, n_keys, n_vocab = keys_of(architecture, sizes, chat, add_bos)
    tensors = tensors_of(architecture, sizes, n_vocab, random)
    if edit is not None:
        edit(tensors)
    infos, data = b"", b""
    for name, content in tensors.items():
        data += b"\0" * (-len(data) % ALIGNMENT)
        small = quantized and content.ndim == 2
        infos += string(name) + struct.pack("<I", content.ndim) + struct.pack(f"<{content.ndim}Q", *reversed(content.shape)) + struct.pack("<IQ", Q8_0 if small else 0, len(data))
        data += q8_0(content) if small else content.tobytes()
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), n_keys) + keys + infos
    with open(path, "wb") as file:
        file.write(head + b"\0" * (-len(head) % ALIGNMENT) + data)
    return path
