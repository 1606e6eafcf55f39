"""octavo.transformers on real models of transformers: small random ones against eager attention in float32, and the models in build/models where they lie."""
import json
import os
import re
import shutil
import subprocess
import sys
import types
import weakref

import numpy as np
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import small_models                  # noqa: E402

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.16")
import octavo                       # noqa: E402
import octavo.transformers as ours  # noqa: E402

transformers.logging.set_verbosity_error()
ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
SMALL = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
             max_position_embeddings=2048, pad_token_id=0, bos_token_id=1, eos_token_id=2)
WINDOW = dict(sliding_window=12, layer_types=["sliding_attention", "full_attention"] * 2)
MODELS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL),
    "qwen3": lambda: transformers.Qwen3Config(**SMALL),
    "gemma2": lambda: transformers.Gemma2Config(**SMALL, **WINDOW, attn_logit_softcapping=0.5, query_pre_attn_scalar=4),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SMALL, **WINDOW, query_pre_attn_scalar=4),
    # All experts, since a choice among them jumps.
    "gpt_oss": lambda: transformers.GptOssConfig(**SMALL, **WINDOW, num_local_experts=2, num_experts_per_tok=2),
}
GREEDY = dict(do_sample=False, eos_token_id=None, pad_token_id=0, output_logits=True, return_dict_in_generate=True)


def build(name, implementation="octavo", **changes):
    """Weights that make attention matter: scores of some units, and sinks of their size."""
    torch.manual_seed(7)
    config = MODELS[name]()
    config.update(changes)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation, dtype=torch.float32).eval()
    return small_models.sharpen(model, 12)


def prompt(batch=3, tokens=40, hole=False):
    g = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 97, (batch, tokens), generator=g)
    mask = torch.ones_like(ids)
    for b in range(1, batch):
        mask[b, :6 * b] = 0
    if hole:
        mask[batch - 1, 20] = 0
    ids[mask == 0] = 0
    return ids, mask


def generate(model, ids, mask, new=24, **more):
    return model.generate(ids, attention_mask=mask, max_new_tokens=new, **GREEDY, **more)


def judge(got, want, bound):
    assert torch.equal(got.sequences, want.sequences)
    assert max((a - b).abs().max().item() for a, b in zip(got.logits, want.logits)) <= bound * max(w.abs().max().item() for w in want.logits)


@pytest.mark.parametrize("name", MODELS)
def test_a_cache_of_f32_is_eager_attention(name):
    """Dynamic, static, transformers' own caches and none, over a padded batch that outgrows the window."""
    ids, mask = prompt(hole=name in ("llama", "qwen3"))
    want = generate(build(name, "eager"), ids, mask)
    model = build(name)
    for cache in (ours.OctavoCache(model.config, "f32"), ours.OctavoCache(model.config, "f32", max_cache_len=64), transformers.DynamicCache(config=model.config), None):
        judge(generate(model, ids, mask, past_key_values=cache), want, 2e-5)
    judge(generate(model, ids, mask, cache_implementation="static", disable_compile=True), want, 2e-5)
    judge(generate(model, ids, mask, use_cache=False), want, 2e-5)


class Rounded(transformers.DynamicCache):
    """transformers' cache in float32, of what is left of K and V after their bytes."""

    def __init__(self, config, kv):
        super().__init__(config=config)
        self.formats = ours._FORMATS[kv]

    def update(self, key_states, value_states, *where, **more):
        return super().update(*(self.through(x, f) for x, f in zip((key_states, value_states), self.formats)), *where, **more)

    @staticmethod
    def through(x, form):
        rows = x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3])
        spec = octavo.KVSpec(*rows.shape[1:], page_size=1, k=form)
        layer = octavo.KVPool(spec, 1, len(rows)).layer(0)
        octavo.kv_write(layer, rows, rows, torch.arange(len(rows), dtype=torch.int32))
        if form.dtype == "bf16":
            back = torch.from_dlpack(layer.k)[:, 0].float()
        else:
            scale = 1.0 if form.scale == "none" else np.asarray(layer.k_token_scale).astype(np.float32)[:, 0, :, None]
            back = torch.from_numpy(octavo.dequantize(np.asarray(layer.k)[:, 0], form.dtype, scale, rotated=form.rotated))
        return back.view(x.shape[0], x.shape[2], *back.shape[1:]).transpose(1, 2)


def in_steps(model, ids, mask, cache):
    steps = [model(ids[:, a:b], attention_mask=mask[:, :b], position_ids=torch.arange(a, b)[None], past_key_values=cache).logits for a, b in ((0, 30), (30, 31), (31, 40))]
    return torch.cat(steps, 1)[mask.bool()]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kv", ["bf16", "i8", "e4m3", "e5m2"])
def test_an_8_bit_cache_is_eager_attention_over_what_its_bytes_mean(name, kv):
    """One layer: the last bit of a number may round another one to its neighbour in the next layer's bytes. Kernels over 8 bits hold q and P in 16 bits or more."""
    ids, mask = prompt()
    one = dict(num_hidden_layers=1, **({"layer_types": ["sliding_attention"]} if "g" in name else {}))
    with torch.inference_mode():
        plain, model = build(name, "eager", **one), build(name, **one)
        want = in_steps(plain, ids, mask, Rounded(plain.config, kv))
        error = (in_steps(model, ids, mask, ours.OctavoCache(model.config, kv)) - want).norm() / want.norm()
        loss = (in_steps(plain, ids, mask, transformers.DynamicCache(config=plain.config)) - want).norm() / want.norm()
    assert error < 1e-3 and error < loss / 3


def test_a_calibration_file_says_what_each_layer_is_kept_in(tmp_path):
    """Formats of a file's layers, and its scales, are those of a cache that was told the same; version 1 leaves the formats to kv."""
    model = build("llama")
    n, heads = model.config.num_hidden_layers, model.config.num_key_value_heads
    k = ["i8+rot" if i % 2 == 0 else "f32" for i in range(n)]
    file = {"kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"0": {str(i): 0.05 for i in range(n)}}},
            "octavo": {"version": 2, "heads": heads, "rotated": [False, False], "formats": {"k": k, "v": ["e4m3fn:layer"] * n}, "k": {"layer": [0.05] * n}, "v": {"layer": [0.01 * (i + 1) for i in range(n)]}}}
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(file))
    ids, mask = prompt()
    with torch.inference_mode():
        cache = ours.OctavoCache(model.config, calibration=path)
        got = in_steps(model, ids, mask, cache)
        assert [layer.pages.spec.k.dtype for layer in cache.layers] == [name.split("+")[0] for name in k] and cache.layers[0].pages.spec.k.rotated
        np.testing.assert_allclose([float(layer.pages.scales[1][0]) for layer in cache.layers], [0.01 * (i + 1) for i in range(n)], rtol=1e-6)
        assert (got - in_steps(model, ids, mask, ours.OctavoCache(model.config, "f32"))).norm() / got.norm() < 0.1
        file["octavo"]["version"] = 1
        path.write_text(json.dumps(file))
        form = octavo.KVFormat("e4m3fn", "layer")
        scales = [(0.05, 0.01 * (i + 1)) for i in range(n)]
        assert torch.equal(in_steps(model, ids, mask, ours.OctavoCache(model.config, (form, form), calibration=path)), in_steps(model, ids, mask, ours.OctavoCache(model.config, (form, form), scales=scales)))
        with pytest.raises(octavo.InvalidArgument, match="has scales for formats with static ones, of which kv has none"):
            ours.OctavoCache(model.config, calibration=path)
    file["kv_cache"]["scaling_factor"]["0"][str(n)] = 1.0
    file["octavo"] |= {"k": {"layer": [0.05] * (n + 1)}, "v": {"layer": [0.05] * (n + 1)}}
    path.write_text(json.dumps(file))
    with pytest.raises(octavo.InvalidArgument, match=f"is of {n + 1} layers; the model has {n}"):
        ours.OctavoCache(model.config, calibration=path)
    del file["kv_cache"]["scaling_factor"]["0"][str(n)], file["octavo"]
    path.write_text(json.dumps(file | {"model_type": "qwen2"}))
    with pytest.raises(octavo.BadData, match="is of a model of type 'qwen2'; this model's is 'llama'"):
        ours.OctavoCache(model.config, calibration=path)


def test_memory_is_that_of_eight_bits_and_of_the_window():
    config = MODELS["gemma3"]()
    config.sliding_window = 64
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="octavo", dtype=torch.bfloat16).eval()
    ids = torch.randint(3, 97, (2, 1500))
    sixteen = 2 * 2 * 2 * 1500 * 32 * 2   # K and V, heads, batch, tokens, dim, bytes: of one layer
    cache = ours.OctavoCache(config, "i8")
    with torch.inference_mode():
        model(ids, past_key_values=cache)
    full = [layer.pages.nbytes for layer in cache.layers if not layer.window]
    window = [layer.pages.nbytes for layer in cache.layers if layer.window]
    assert cache.nbytes == sum(full + window)
    assert all(n <= 0.54 * sixteen for n in full)       # a scale of two bytes for 32 elements
    assert all(n <= 0.54 * sixteen * (64 + 512 + 32) / 1500 for n in window)
    static = ours.OctavoCache(config, "i8", max_cache_len=1600)
    with torch.inference_mode():
        model(ids, past_key_values=static)
        before = static.nbytes
        with pytest.raises(octavo.InvalidArgument, match="max_cache_len 1600"):
            model(ids[:, :200], past_key_values=static)
        model(ids[:, :90], past_key_values=static)
    assert static.nbytes == before and static.get_seq_length() == 1590 and static.get_max_length() == 1600


@pytest.mark.parametrize("fails", [None, 1, 2, 4])
def test_a_layer_grows_part_by_part_or_stays_as_it_was(fails, monkeypatch):
    pages = ours.Pages(octavo.KVSpec(2, 64, page_size=16, k=octavo.KVFormat("i8", "token_head")), torch.device("cpu"))
    pages.reserve(8)
    for part in pages.parts.values():
        part.random_(0, 100)
    before = {name: part.clone() for name, part in pages.parts.items()}
    held = [part.untyped_storage()._weak_ref() for part in pages.parts.values()]
    alive, empty = [], torch.empty

    def counted(*shape, **more):
        alive.append([not torch.UntypedStorage._expired(h) for h in held])
        if len(alive) == fails:
            raise MemoryError("no more")
        return empty(*shape, **more)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", counted)
        if fails:
            with pytest.raises(MemoryError):
                pages.reserve(9)
        else:
            pages.reserve(9)
    assert alive == [[False] * i + [True] * (4 - i) for i in range(fails or 4)]   # what has grown is held once
    assert all(len(part) == (8 if fails else 10) and torch.equal(part[:8], before[name]) for name, part in pages.parts.items())
    assert pages.layer is not None
    pages.reserve(20)
    rows = torch.randn(1, 2, 64)
    octavo.kv_write(pages.layer, rows, rows, torch.tensor([19 * 16], dtype=torch.int32))
    assert all(torch.equal(part[:8], before[name]) for name, part in pages.parts.items())


# ---- conventions, one attention at a time ------------------------------------------------------------------------------

def module(**more):
    return types.SimpleNamespace(is_causal=True, training=False, layer_idx=0, **more)


def one_layer(window, kv="f32", **more):
    types_ = ["sliding_attention" if window else "full_attention"]
    config = transformers.Qwen3Config(**{**SMALL, "num_hidden_layers": 1}, use_sliding_window=bool(window), sliding_window=window or None, layer_types=types_)
    return ours.OctavoCache(config, kv, **more)


@pytest.mark.parametrize("window", [0, 1, 5, 16])
@pytest.mark.parametrize("stored", [True, False])
def test_b1_which_keys_are_seen(window, stored):
    """Key t has V = the t-th unit vector and all scores are equal: the output names the keys."""
    n, dim = 48, 64
    k = torch.zeros(1, 1, n, dim)
    v = torch.eye(n, dim)[None, None]
    q = torch.randn(1, 2, n, dim)
    fn = transformers.masking_utils.sliding_window_causal_mask_function(window) if window else transformers.masking_utils.causal_mask_function
    want = np.array([[fn(0, 0, torch.tensor(i), torch.tensor(j)).item() for j in range(n)] for i in range(n)])
    got = []
    cache = one_layer(window) if stored else None
    for a, b in ((0, 20), (20, 21), (21, 48)):
        visible = ours.attention_mask(1, b - a, b, a, 0, fn, torch.ones(1, b))
        keys, values = cache.update(k[:, :, a:b], v[:, :, a:b], 0) if stored else (k[:, :, :b], v[:, :, :b])
        got.append(ours.attention(module(), q[:, :, a:b], keys, values, visible, scaling=1.0)[0])
    got = torch.cat(got, 1)[0, :, :, :n].numpy()
    for h in range(2):
        assert np.array_equal(got[:, h] > 0, want)
        np.testing.assert_allclose(got[:, h].sum(-1), 1, atol=1e-5)


def test_a1_a3_scales_of_a_layer_serve_write_and_read():
    torch.manual_seed(1)
    k, v, q = torch.randn(1, 1, 40, 64), torch.randn(1, 1, 40, 64), torch.randn(1, 2, 1, 64)
    form = octavo.KVFormat("e4m3fn", "layer")
    outs = {}
    for scale in (0.07, 1.0, 0.07 / 16):
        cache = one_layer(0, (form, form), scales=[(scale, 2 * scale)])
        keys, values = cache.update(k, v, 0)
        outs[scale] = ours.attention(module(), torch.cat((torch.zeros(1, 2, 39, 64), q), 2), keys, values, None)[0][:, -1]
        pages = cache.layers[0].pages.parts
        assert np.array_equal(pages["k"].view(-1, 1, 64)[:40].numpy(), octavo.quantize(k[0].transpose(0, 1).numpy(), "e4m3fn", scale))
        assert np.array_equal(pages["v"].view(-1, 1, 64)[:40].numpy(), octavo.quantize(v[0].transpose(0, 1).numpy(), "e4m3fn", 2 * scale))
    assert not torch.equal(outs[0.07], outs[1.0])
    want = torch.nn.functional.scaled_dot_product_attention(q, k.expand(1, 2, -1, -1), v.expand(1, 2, -1, -1))[:, :, 0]
    assert (outs[0.07] - want).norm() < 0.06 * want.norm() < (outs[0.07 / 16] - want).norm()   # the last saturates


def test_d5_padding_is_stored_nowhere():
    cache = one_layer(0, "f32", max_cache_len=32)
    k, v, q = torch.randn(2, 1, 9, 64), torch.randn(2, 1, 9, 64), torch.randn(2, 2, 9, 64)
    mask = torch.ones(2, 9)
    mask[1, :4] = 0
    k[1, :, :4] = v[1, :, :4] = float("nan")
    keys, values = cache.update(k, v, 0)
    pages = cache.layers[0].pages.parts["k"]
    pages.fill_(123.0)
    out, _ = ours.attention(module(), q, keys, values, ours.attention_mask(2, 9, 9, 0, 0, transformers.masking_utils.causal_mask_function, mask))
    assert int((pages != 123.0).any(-1).sum()) == 9 + 5
    assert (out[1, :4] == 0).all() and out.isfinite().all()


# ---- what generate() does with a cache --------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_beams_share_pages(name):
    ids, mask = prompt()
    more = dict(num_beams=3, num_return_sequences=2)
    want = generate(build(name, "eager"), ids, mask, **more)
    model = build(name)
    got = generate(model, ids, mask, past_key_values=ours.OctavoCache(model.config, "f32"), **more)
    assert torch.equal(got.sequences, want.sequences)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_drafts_are_taken_back(name):
    model = build(name)
    ids = torch.tensor([[5, 6, 7, 8, 9] * 6])
    mask = torch.ones_like(ids)
    want = generate(model, ids, mask, past_key_values=ours.OctavoCache(model.config, "f32"))
    for most in (None, 64):
        cache = ours.OctavoCache(model.config, "f32", max_cache_len=most)
        got = generate(model, ids, mask, past_key_values=cache, prompt_lookup_num_tokens=4)
        assert torch.equal(got.sequences, want.sequences)
    long, cache = ids.repeat(1, 22), ours.OctavoCache(model.config, "f32", max_cache_len=700)   # past what a window's pages hold
    want = generate(model, long, torch.ones_like(long), new=8, past_key_values=ours.OctavoCache(model.config, "f32"))
    assert torch.equal(generate(model, long, torch.ones_like(long), new=8, past_key_values=cache, prompt_lookup_num_tokens=4).sequences, want.sequences)
    if name == "gemma3":
        with torch.inference_mode():
            cache = ours.OctavoCache(model.config, "f32")
            model(ids, past_key_values=cache)
            with pytest.raises(RuntimeError, match="activate_past_recording"):
                cache.crop(-3)
            assert {b.length for b in cache.books.values()} == {30}   # all of it or nothing


def test_a_cache_starts_anew_and_goes_with_its_last_name():
    model = build("gemma3")
    ids, mask = prompt()
    cache = ours.OctavoCache(model.config, "i8")
    first = generate(model, ids, mask, past_key_values=cache)
    cache.reset()
    assert cache.get_seq_length() == 0
    judge(generate(model, ids, mask, past_key_values=cache), first, 0)
    for most in (None, 64):   # for another batch, too
        cache = ours.OctavoCache(model.config, "i8", max_cache_len=most)
        generate(model, ids[:2], mask[:2], past_key_values=cache)
        cache.reset()
        judge(generate(model, ids, mask, past_key_values=cache), first, 0)
    page = weakref.ref(cache.layers[0].pages)
    del cache, first
    assert page() is None


def test_a_step_without_pages_for_all_leaves_none():
    book = ours.Book(2, torch.device("cpu"), window=0, most_tokens=64, fixed=True)
    book.advance(40, None)
    for n, indices in ((30, None), (60, [0, 0])):     # the second sequence finds no page; with shared pages too
        if indices:
            book.select(indices)
        with pytest.raises(octavo.OutOfPages):
            book.advance(n, None)
        assert book.length == 40 and [book.table.length(s) for s in book.sequences] == [40, 40] and book.step == 1
    assert len(book.owed) == 1                        # the first one's copy of the shared page
    first, second = book.sequences
    last = int(book.table.pages(second)[2]), int(book.table.pages(first)[2])
    chunk, = book.advance(1, None)
    assert chunk.copies == [last] and chunk.batch[2].tolist() == [41, 41] and not book.owed and chunk.n_pages > max(last)
    assert book.advance(1, None)[0].copies == []


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@torch.inference_mode()
def test_a_step_that_fails_has_not_been(name, monkeypatch):
    """In any layer, over pages that beams share; then again, with other tokens, with one beam gone."""
    model, (ids, mask) = build(name), prompt()

    def run(fail_at):
        cache = ours.OctavoCache(model.config, "f32")
        model(ids, attention_mask=mask, past_key_values=cache)
        cache.batch_select_indices([0, 0, 1])
        seen, calls, write = torch.cat((mask[[0, 0, 1]], torch.ones(3, 3, dtype=mask.dtype)), 1), [], octavo._octavo.kv_write

        def fails(*args):
            calls.append(None)
            if len(calls) > fail_at:
                raise MemoryError("no more")
            write(*args)

        if fail_at is not None:
            with monkeypatch.context() as patch:
                patch.setattr(octavo._octavo, "kv_write", fails)
                with pytest.raises(MemoryError):
                    model(ids[:, 9:12], attention_mask=seen, past_key_values=cache)
            assert cache.get_seq_length() == 40 and {b.length for b in cache.books.values()} == {40}
        cache.batch_select_indices([0, 1])
        new = torch.tensor([[5, 6, 7], [8, 9, 10]])
        return model(new, attention_mask=seen[:2], past_key_values=cache).logits

    want = run(None)
    for fail_at in range(4):
        assert torch.equal(run(fail_at), want)


@torch.inference_mode()
def test_a_step_that_cannot_be_taken_back_ends_the_cache(monkeypatch):
    model, ids = build("gemma3"), torch.randint(3, 97, (2, 600), generator=torch.Generator().manual_seed(1))
    cache = ours.OctavoCache(model.config, "f32")
    want = model(ids, past_key_values=cache).logits
    cache.reset()

    def fail(*_):
        with monkeypatch.context() as patch:
            patch.setattr(octavo._octavo, "kv_write", lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                model(ids, past_key_values=cache)

    fail()                                             # an empty one is empty again
    assert torch.equal(model(ids, past_key_values=cache).logits, want)
    fail()                                             # 512 tokens on, the window has let go of what the first 600 end with
    with pytest.raises(octavo.InvalidArgument, match="lost tokens"):
        model(ids[:, :1], past_key_values=cache)
    assert {b.length for b in cache.books.values()} == {600}
    cache.reset()
    with monkeypatch.context() as patch:               # between two attentions
        patch.setattr(model.model.layers[0].mlp, "forward", lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            model(ids, past_key_values=cache)
    with pytest.raises(octavo.InvalidArgument, match="steps behind"):
        model(ids, past_key_values=cache)
    cache.reset()
    assert torch.equal(model(ids, past_key_values=cache).logits, want)


@pytest.mark.parametrize("name", MODELS)
def test_generate_batch(name, monkeypatch):
    """Continuous batching: requests of many lengths in one row, prompts in parts, fewer blocks than all would take; tokens are those of each alone under eager attention."""
    g = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 97, (n,), generator=g).tolist() for n in (5, 40, 17, 90, 33, 61)]
    how = transformers.GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=-1, pad_token_id=0)
    plain = build(name, "eager")
    want = [plain.generate(torch.tensor([p]), generation_config=how)[0, len(p):].tolist() for p in prompts]
    steps, over = [], ours._over
    monkeypatch.setattr(ours, "_over", lambda chunk, *args: (steps.append(len(chunk.batch[2])), over(chunk, *args)))
    model = ours.for_generate_batch(build(name, "eager"))
    got = model.generate_batch(inputs=prompts, generation_config=how, progress_bar=False,
                               continuous_batching_config=transformers.ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64, default_compile_level=0))
    assert [o.generated_tokens for o in sorted(got.values(), key=lambda o: prompts.index(o.prompt_ids))] == want
    assert len(steps) >= 4 * 12 and max(steps) > 2
    with torch.no_grad(), pytest.raises(NotImplementedError, match="octavo_flash is for generate_batch"):
        model(torch.tensor([prompts[0]]))


def test_what_is_not_there_is_said():
    model = build("llama", "eager")
    ids, mask = prompt()
    with pytest.raises(NotImplementedError, match="attn_implementation=\"octavo\""):
        generate(model, ids, mask, past_key_values=ours.OctavoCache(model.config))
    model = build("llama")
    with pytest.raises(NotImplementedError, match="not differentiable"):
        model(ids)
    with torch.no_grad(), pytest.raises(NotImplementedError, match="two-dimensional"):
        model(ids, attention_mask=torch.zeros(3, 1, 40, 40))
    with torch.no_grad(), pytest.raises(NotImplementedError, match="asks for the mask"):
        model(ids, position_ids=torch.arange(40).remainder(20)[None].expand(3, -1), use_cache=False)   # packed sequences
    with torch.no_grad():
        cache = ours.OctavoCache(model.config)
        model(ids, attention_mask=mask, past_key_values=cache)
        with pytest.raises(NotImplementedError, match="has changed"):
            model(ids[:, -1:], past_key_values=cache)
        with pytest.raises(NotImplementedError, match="float64"):
            build("llama").double()(ids)
    with torch.no_grad(), pytest.raises(NotImplementedError, match="between others"):
        build("gemma3")(ids, attention_mask=prompt(hole=True)[1])
    with pytest.raises(NotImplementedError, match="linear_attention"):
        ours.OctavoCache(transformers.Qwen3NextConfig(num_hidden_layers=4))
    with pytest.raises(octavo.InvalidArgument, match="must be one of i8"):
        ours.OctavoCache(model.config, "int4")


def blocks(page):
    with open(os.path.join(ROOT, "doc", page), encoding="utf-8") as file:
        return re.findall(r"^```(\w*)\n(.*?)^```$", file.read(), re.M | re.S)


def test_the_blocks_of_the_page_run(tmp_path, capsys, monkeypatch):
    (first, generate_), (second, generate_batch) = blocks("TRANSFORMERS.md")
    assert (first, second) == ("py", "py")
    build("llama").save_pretrained(tmp_path)
    names = dict(checkpoint=tmp_path, ids=prompt()[0][:, :20].clamp(3))
    exec(generate_, names)
    assert "51 tokens of 3 sequences in" in capsys.readouterr().out
    names |= dict(prompts=names["ids"].tolist(), config=transformers.GenerationConfig(max_new_tokens=4, do_sample=False, eos_token_id=-1, pad_token_id=0))
    monkeypatch.setattr(torch._dynamo.config, "disable", True)   # generate_batch compiles other parts of the model, which takes minutes
    exec(generate_batch, names)
    assert sorted(len(o.generated_tokens) for o in names["outputs"].values()) == [4, 4, 4]


# ---- real weights -----------------------------------------------------------------------------------------------------

FILES = {"SmolLM2": "SmolLM2-135M-Instruct.Q4_1.gguf", "Gemma 3": "gemma-3-270m-q4_k_m.gguf"}
MODELS_FOLDER = os.environ.get("OCTAVO_TEST_MODELS", os.path.join(ROOT, "build", "models"))


@pytest.fixture(params=FILES)
def checkpoint(request, tmp_path):
    program = os.environ.get("OCTAVO_TEST_PROGRAM", os.path.join(ROOT, "build", "release", "octavo"))
    gguf = os.path.join(MODELS_FOLDER, FILES[request.param])
    if not (os.path.exists(program) and os.path.exists(gguf)):
        pytest.skip(f"no {FILES[request.param]} in {MODELS_FOLDER} (tools/setup/models.sh), or no {program}")
    subprocess.run([program, "export-hf", "-m", gguf, "-o", tmp_path / "model", "--dtype", "f32"], check=True)
    yield request.param, tmp_path / "model"
    shutil.rmtree(tmp_path / "model")


def test_real_weights(checkpoint):
    name, folder = checkpoint
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    assert model.dtype == torch.float32
    with open(os.path.join(ROOT, "doc", "NUMERICS.md"), encoding="utf-8") as file:
        text = file.read()
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert tokenizer.decode(ids[0], skip_special_tokens=True) == text
    ids = ids[:, :700]   # past Gemma's window of 512
    start = ids[:, :600]
    with torch.inference_mode():
        want = model(ids).logits.log_softmax(-1)
        plain = generate(model, start, torch.ones_like(start), new=24)
        model.set_attn_implementation("octavo")
        judge(generate(model, start, torch.ones_like(start), new=24, past_key_values=ours.OctavoCache(model.config, "f32")), plain, 1e-3)
        loss = {}
        for kv in ("f32", "i8", "e4m3"):
            cache = ours.OctavoCache(model.config, kv)
            got = torch.cat([model(ids[:, a:b], past_key_values=cache).logits for a, b in ((0, 650), (650, 651), (651, 700))], 1).log_softmax(-1)
            loss[kv] = (want.exp() * (want - got)).sum(-1).mean().item()
    nll = -want[0, :-1].gather(1, ids[0, 1:, None]).mean().item()
    print(f"{name}: {nll:.2f} nats a token; mean KL to eager attention:", {k: f"{v:.1e}" for k, v in loss.items()})
    assert nll < 4.5   # weights in wrong places give ten
    assert abs(loss["f32"]) < 1e-6 and loss["i8"] < 2e-3 and loss["e4m3"] < 2e-2 and loss["i8"] < loss["e4m3"]


def test_the_commands_of_llamacpps_page_run(tmp_path):
    """doc/LLAMACPP.md: its block, and what octavo and transformers then take; vLLM's and SGLang's options are their suites'."""
    program, gguf = os.environ.get("OCTAVO_TEST_PROGRAM", os.path.join(ROOT, "build", "release", "octavo")), os.path.join(MODELS_FOLDER, FILES["SmolLM2"])
    if not (os.path.exists(program) and os.path.exists(gguf)):
        pytest.skip(f"no SmolLM2 in {MODELS_FOLDER} (tools/setup/models.sh), or no {program}")
    (_, commands), = blocks("LLAMACPP.md")
    os.symlink(os.path.abspath(gguf), tmp_path / "MODEL.gguf")
    (tmp_path / "bin").mkdir()
    os.symlink(os.path.abspath(program), tmp_path / "bin" / "octavo")
    with open(os.path.join(ROOT, "doc", "LLAMACPP.md"), encoding="utf-8") as file:
        page = file.read()
    run, = re.findall(r"`(octavo run -m .*?)`", page)
    # As they stand, with as little to compute as they take.
    less = {"octavo calibrate": " --tokens 64", "octavo run": " -p Once -n 2"}
    for command in (*commands.splitlines(), run):
        command = command.split("#")[0].rstrip() + next((more for start, more in less.items() if command.startswith(start)), "")
        done = subprocess.run(["sh", "-e", "-c", command], cwd=tmp_path, env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}, capture_output=True, text=True)
        assert done.returncode == 0, command + done.stdout + done.stderr
    assert json.load(open(tmp_path / "kv_cache_scales.json", encoding="utf-8"))["kv_cache"]["scaling_factor"].keys() == {"0", "1"}
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "DIR", attn_implementation="octavo").eval()
    cache, = re.findall(r"`(OctavoCache\(.*?)`", page)
    form = (octavo.KVFormat("e4m3fn", "layer"),) * 2
    cache = eval(cache.replace("scales.json", str(tmp_path / "scales.json")), dict(OctavoCache=ours.OctavoCache, config=model.config, octavo=octavo))
    with torch.inference_mode():
        assert model(torch.tensor([[1, 2, 3]]), past_key_values=cache).logits.isfinite().all()
    assert [(layer.pages.spec.k, layer.pages.spec.v) for layer in cache.layers] == [form] * model.config.num_hidden_layers


def test_an_export_is_what_transformers_reads_from_the_gguf(checkpoint):
    name, folder = checkpoint
    if name != "SmolLM2":
        pytest.skip("transformers takes minutes for a GGUF of 262,144 tokens")
    mine, theirs = (transformers.AutoModelForCausalLM.from_pretrained(*where, dtype=torch.float32, **how).state_dict()
                    for where, how in (((folder,), {}), ((MODELS_FOLDER,), {"gguf_file": FILES[name]})))
    assert mine.keys() == theirs.keys()
    for key, weight in mine.items():
        assert torch.equal(weight, theirs[key]), key
