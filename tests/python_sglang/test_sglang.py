"""octavo.sglang under SGLang's own ForwardBatch, pools, allocators and RadixAttention layers, beside its TorchNativeAttnBackend: on a GPU where there is one, or on the CPU.
The package is installed, so that SGLang finds its plug-in. SGLang's kernels are not to be had for a CPU: its Triton kernels are run by Triton's interpreter where a test wants one."""
import json
import os
import re
import subprocess
import sys
import types

import numpy as np
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import small_models                                                                                # noqa: E402
from small_models import calibration                                                                # noqa: E402

os.environ["SGLANG_PLUGINS"] = "octavo"
torch = pytest.importorskip("torch")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")   # before any kernel is made
pytest.importorskip("sglang")
import octavo                                                                                       # noqa: E402
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS                       # noqa: E402
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend                 # noqa: E402
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention                         # noqa: E402
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator                        # noqa: E402
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator                            # noqa: E402
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator                             # noqa: E402
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MHATokenToKVPool, ReqToTokenPool           # noqa: E402
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool                                          # noqa: E402
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode  # noqa: E402
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context               # noqa: E402
from sglang.srt.plugins import load_plugins                                                         # noqa: E402
from sglang.srt.speculative.eagle_info import EagleVerifyInput                                      # noqa: E402
from sglang.srt.speculative.ngram_info import NgramVerifyInput                                      # noqa: E402

load_plugins()
import octavo.sglang as ours   # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
HEADS_Q, HEADS, DIM, SIZE, SIZE_SWA, LAYERS = 4, 2, 64, 320, 256, 3
whole_engine = pytest.mark.skipif(DEVICE != "cpu", reason="whole engines are run on the CPU")
CLOSE = small_models.close_on(DEVICE)
on_the_device = small_models.tensors_on(DEVICE)


def model(calibration=None, n_layers=LAYERS):
    """What attention asks of SGLang's ModelConfig."""
    return types.SimpleNamespace(hf_config=types.SimpleNamespace(**{"octavo_calibration": calibration} if calibration else {}),
                                 hf_text_config=types.SimpleNamespace(model_type="llama", num_hidden_layers=n_layers))


class Worker:
    """What a ModelRunner of SGLang's has for attention: pools, allocator, backend; and its requests. Layers 0 and 2 are the window's where there are twin pools."""

    def __init__(self, backend="octavo", dtype=torch.float32, page_size=16, twin=False, heads=HEADS, dim_v=DIM, calibration=None, quantization_param_path=None, **options):
        shape = dict(page_size=page_size, dtype=dtype, head_num=heads, head_dim=DIM, v_head_dim=dim_v, device=DEVICE, enable_memory_saver=False)
        if twin:
            self.pool = SWAKVPool(size=SIZE, size_swa=SIZE_SWA, swa_attention_layer_ids=[0, 2], full_attention_layer_ids=[1], **shape)
            self.allocator = SWATokenToKVPoolAllocator(SIZE, SIZE_SWA, page_size, dtype, DEVICE, self.pool, need_sort=False)
        else:
            self.pool = MHATokenToKVPool(size=SIZE, layer_num=LAYERS, **shape, **options)
            kind = TokenToKVPoolAllocator if page_size == 1 else PagedTokenToKVPoolAllocator
            self.allocator = kind(SIZE, *([] if page_size == 1 else [page_size]), dtype, DEVICE, self.pool, need_sort=False)
        self.requests = ReqToTokenPool(size=4, max_context_len=256, device=DEVICE, enable_memory_saver=False)
        runner = types.SimpleNamespace(device=DEVICE, req_to_token_pool=self.requests, token_to_kv_pool=self.pool, use_mla_backend=False, model_config=model(calibration),
                                       server_args=types.SimpleNamespace(quantization_param_path=quantization_param_path))
        self.backend = ATTENTION_BACKENDS["octavo"](runner) if backend == "octavo" else TorchNativeAttnBackend(runner)
        self.page_size, self.lens = page_size, {}

    def slots(self, rows, new):
        """Of new[i] tokens for request rows[i], by SGLang's allocator, in its table."""
        before, after = (torch.tensor([self.lens.get(r, 0) + (n if with_new else 0) for r, n in zip(rows, new)]) for with_new in (False, True))
        if self.page_size == 1:
            slots = self.allocator.alloc(sum(new))
        else:
            last = torch.tensor([int(self.requests.req_to_token[r, n - 1]) if n else -1 for r, n in zip(rows, before.tolist())])
            slots = self.allocator.alloc_extend(before, before.cpu(), after, after.cpu(), last, sum(new))
        for r, n, part in zip(rows, before.tolist(), slots.split(list(new))):
            self.requests.write((r, slice(n, n + len(part))), part.int())
            self.lens[r] = n + len(part)
        return slots, before, after

    def batch(self, mode, rows, new, spec_info=None, **more):
        slots, before, after = self.slots(rows, new)
        lens = before if mode == ForwardMode.TARGET_VERIFY else after
        if mode.is_extend_without_speculative():
            more = dict(extend_prefix_lens=before, extend_seq_lens=after - before, extend_prefix_lens_cpu=before.tolist(), extend_seq_lens_cpu=list(new), **more)
        return ForwardBatch(forward_mode=mode, batch_size=len(rows), input_ids=torch.zeros(len(slots), dtype=torch.int64), req_pool_indices=torch.tensor(rows), seq_lens=lens,
                            seq_lens_cpu=lens.cpu(), seq_lens_sum=int(lens.sum()), out_cache_loc=slots, spec_info=spec_info, **more)

    def run(self, batch, layer, q, k, v, **more):
        self.backend.init_forward_metadata(batch)
        with forward_context(ForwardContext(attn_backend=self.backend)):
            out = layer(q, k, v, batch, **more)
        out, lse = out if isinstance(out, tuple) else (out, None)
        out = out.view(len(q), layer.tp_q_head_num, -1)
        return out if lse is None else (out, lse)

    def bytes(self, layer, row):
        """K and V of a request, as they lie in the layer's pool."""
        slots = self.requests.req_to_token[row, :self.lens[row]].long()
        if ours.own_pool(self.pool, layer.layer_id)[1]:
            slots = self.pool.translate_loc_from_full_to_swa(slots)
        return [x[slots] for x in self.pool.get_kv_buffer(layer.layer_id)]


def layer_of(layer_id=0, window=-1, heads_q=HEADS_Q, heads=HEADS, **more):
    return RadixAttention(heads_q, DIM, DIM ** -0.5, heads, layer_id, sliding_window_size=window, **more)


def rows(n, dtype=torch.float32, seed=0, dim_v=DIM):
    g = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, h * d, generator=g, device="cpu") * s).to(DEVICE, dtype) for h, d, s in ((HEADS_Q, DIM, 3.0), (HEADS, DIM, 1.0), (HEADS, dim_v, 1.0))]


def reference(q, k, v, keep=None, softcap=0.0, sink=None):
    """Float64 over k, v [keys, heads, dim]; keep bool[rows, keys], None: causal."""
    n, m = len(q), len(k)
    keep = torch.arange(m)[None] <= torch.arange(m - n, m)[:, None] if keep is None else keep
    k, v = (x.double().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = torch.einsum("qhd,khd->hqk", q.double(), k) * DIM ** -0.5
    s = (softcap * torch.tanh(s / softcap) if softcap else s).masked_fill(~keep, float("-inf"))
    if sink is not None:
        s = torch.cat((s, sink.double()[:, None, None].expand(-1, n, 1)), -1)
    return torch.einsum("hqk,khd->qhd", s.softmax(-1)[..., :m], v)


def in_window(n_rows, n_keys, window):
    """SGLang's own matrix."""
    if window < 0:
        return None
    return TorchNativeAttnBackend._make_sliding_window_mask(q_len=n_rows, kv_len=n_keys, sliding_window_size=window, device=DEVICE, query_offset=n_keys - n_rows)


# ---- conventions ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("twin", [False, True])
@pytest.mark.parametrize("window", [-1, 1, 4, 15])
def test_b1_which_keys_are_seen(window, twin, page_size):
    """Key t has V = the t-th unit vector and all scores are equal: the output names the keys. A prompt in two chunks, then a step."""
    worker, layer = Worker(twin=twin, page_size=page_size), layer_of(0, window)
    worker.slots([2], [40])   # another request's, so that slots of the two sides differ
    q, at = torch.randn(60, HEADS_Q * DIM), 0
    if twin:
        worker.allocator.free_swa(worker.requests.req_to_token[2, :32].long())
    for mode, n in ((ForwardMode.EXTEND, 37), (ForwardMode.EXTEND, 22), (ForwardMode.DECODE, 1)):
        v = torch.eye(60, DIM)[at:at + n].repeat(1, HEADS)
        out = worker.run(worker.batch(mode, [1], [n]), layer, q[at:at + n], torch.zeros(n, HEADS * DIM), v)
        at += n
        want = in_window(n, at, window)
        want = torch.arange(at)[None] <= torch.arange(at - n, at)[:, None] if want is None else want
        for h in range(HEADS_Q):
            assert torch.equal(out[:, h, :at] > 0, want)
        torch.testing.assert_close(out.sum(-1), torch.ones(n, HEADS_Q))


@pytest.mark.parametrize("dtype,name", [(torch.float8_e4m3fn, "e4m3fn"), (torch.float8_e5m2, "e5m2")])
@pytest.mark.parametrize("twin", [False, True])
def test_a1_a3_the_layers_scales_serve_write_and_read(dtype, name, twin):
    q, k, v = rows(50, seed=2)
    outs = {}
    for scale in (None, 1.0, 0.07):
        worker, layer = Worker(dtype=dtype, twin=twin), layer_of(2)
        if scale is not None:   # as SGLang keeps them: tensors of a checkpoint's, numbers of a file's
            layer.k_scale, layer.v_scale = torch.nn.Parameter(torch.tensor(scale), requires_grad=False), 3 * scale
        batch = worker.batch(ForwardMode.EXTEND, [1], [50])
        kept = k.clone(), v.clone()
        outs[scale] = worker.run(batch, layer, q, k, v)
        assert torch.equal(k, kept[0]) and torch.equal(v, kept[1])
        stored = worker.bytes(layer, 1)
        # SGLang's own write makes these bytes.
        stock = Worker("torch_native", dtype=dtype, twin=twin)
        same = stock.batch(ForwardMode.EXTEND, [1], [50])
        where = KVWriteLoc(same.out_cache_loc, stock.pool.translate_loc_from_full_to_swa(same.out_cache_loc) if twin else None)
        stock.pool.set_kv_buffer(layer, where, *(x.clone().view(50, HEADS, DIM) for x in (k, v)), *((scale, 3 * scale) if scale else ()))
        for a, b in zip(stored, stock.bytes(layer, 1)):
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))
        back = [x.float() * s for x, s in zip(stored, (scale or 1.0, 3 * (scale or 1 / 3)))]
        torch.testing.assert_close(outs[scale].double(), reference(q.view(50, HEADS_Q, DIM), *back), atol=1e-2, rtol=0)   # q and P in 16 bits
    assert not torch.equal(outs[1.0], outs[0.07])
    layer.k_scale.fill_(0.14)   # read where it lies, at every run
    assert not torch.equal(worker.run(batch, layer, q, k, v, save_kv_cache=False), outs[0.07])
    big = torch.full_like(v, 1e6)
    assert torch.isfinite(worker.run(batch, layer, q, k, big)).all()   # saturates, where a cast of torch's makes NaN


@pytest.mark.parametrize("twin", [False, True])
def test_d5_slot_minus_one_is_written_nowhere(twin):
    worker, layer = Worker(twin=twin), layer_of(0)
    for buffer in worker.pool.get_kv_buffer(0):
        buffer.fill_(123.0)
    batch = worker.batch(ForwardMode.EXTEND, [1], [6])
    batch.out_cache_loc = batch.out_cache_loc.clone()
    batch.out_cache_loc[[2, 5]] = -1
    q, k, v = rows(6)
    k[2] = v[5] = float("nan")
    worker.run(batch, layer, q, k, v)
    for buffer in worker.pool.get_kv_buffer(0):
        assert int((buffer != 123.0).flatten(1).any(-1).sum()) == 4 and (buffer[-1] == 123.0).all()   # where a wrapped -1 would go


def test_f5_log_sums_merge_as_sglang_merges_them():
    from sglang.srt.layers.attention.merge_state import merge_state
    worker, layer = Worker(), layer_of(1)
    q, k, v = rows(64, seed=4)
    worker.run(worker.batch(ForwardMode.EXTEND, [1], [64]), layer, q, k, v)
    table = worker.requests.req_to_token
    table[2, :32], table[3, :32] = table[1, :32], table[1, 32:64]   # requests of one half each
    parts = []
    for row, n in ((2, 32), (3, 32), (1, 64)):
        batch = ForwardBatch(forward_mode=ForwardMode.DECODE, batch_size=1, input_ids=torch.zeros(1), req_pool_indices=torch.tensor([row]), seq_lens=torch.tensor([n]),
                             out_cache_loc=torch.tensor([0]), seq_lens_sum=n)
        parts.append(worker.run(batch, layer, q[63:], None, None, return_lse=True))
    merged, lse = merge_state(*parts[0], *parts[1])   # its Triton kernel
    torch.testing.assert_close(merged, parts[2][0], atol=CLOSE, rtol=0)
    torch.testing.assert_close(lse, parts[2][1], atol=CLOSE, rtol=0)
    torch.testing.assert_close(parts[2][0].double(), reference(q[63:].view(1, HEADS_Q, DIM), k.view(64, HEADS, DIM), v.view(64, HEADS, DIM)), atol=CLOSE, rtol=0)


# ---- beside SGLang's own backend ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("twin", [False, True])
def test_steps_are_those_of_torch_native(twin, page_size):
    """Prompts in chunks upon prefixes that requests share, steps, both in one batch; the pools' contents and the outputs."""
    mine, stock = (Worker(name, twin=twin, page_size=page_size) for name in ("octavo", "torch_native"))
    layers = [layer_of(0, 7), layer_of(1), layer_of(2, 7)]
    plan = [(ForwardMode.EXTEND, [1, 2], [33, 7]), (ForwardMode.EXTEND, [1], [31]), (ForwardMode.MIXED, [2, 1, 3], [19, 1, 48]), (ForwardMode.DECODE, [1, 3, 2], [1, 1, 1])]
    plan += [(ForwardMode.DECODE, [3, 1], [1, 1])] * 3
    for step, (mode, requests, new) in enumerate(plan):
        if step == 2:   # request 3 begins with request 1's first 32 tokens
            for w in (mine, stock):
                w.requests.req_to_token[3, :32], w.lens[3] = w.requests.req_to_token[1, :32], 32
        batches = [w.batch(mode, requests, new) for w in (mine, stock)]
        for i, layer in enumerate(layers):
            q, k, v = rows(sum(new), seed=10 * step + i)
            got, want = (w.run(b, layer, q, k, v) for w, b in zip((mine, stock), batches))
            torch.testing.assert_close(got, want, atol=2 * CLOSE, rtol=0)
        if twin and step == 3:   # what has left the window goes, page by page
            for w in (mine, stock):
                w.allocator.free_swa(w.requests.req_to_token[1, 32:48].long())
    for layer in layers:
        for row in ((1, 2, 3) if not (twin and layer.layer_id != 1) else (2,)):
            assert all(torch.equal(a, b) for a, b in zip(mine.bytes(layer, row), stock.bytes(layer, row)))


def test_sinks_soft_caps_widths_and_types():
    q, k, v = rows(40, seed=5, dim_v=32)
    sinks = torch.tensor([1.5, -2.0, 0.0, 3.0])
    for dtype, bound in ((torch.float32, CLOSE), (torch.bfloat16, 6e-2), (torch.float16, 6e-2)):
        worker, layer = Worker(dtype=dtype, dim_v=32), layer_of(0, 8, logit_cap=2.0, v_head_dim=32)
        out = worker.run(worker.batch(ForwardMode.EXTEND, [1], [40]), layer, *(x.to(dtype) for x in (q, k, v)), sinks=sinks.to(torch.bfloat16))
        assert out.dtype == dtype and out.shape == (40, HEADS_Q, 32)
        want = reference(q.to(dtype).view(40, HEADS_Q, DIM), *worker.bytes(layer, 1), in_window(40, 40, 8), 2.0, sinks)
        torch.testing.assert_close(out.double(), want, atol=bound, rtol=0)


def test_rows_that_fill_up_idle_steps_and_shared_layers():
    worker, layer = Worker(), layer_of(0)
    q, k, v = rows(10, seed=6)
    batch = worker.batch(ForwardMode.EXTEND, [1], [6])
    batch.out_cache_loc = torch.cat((batch.out_cache_loc, torch.zeros(4, dtype=torch.int64)))   # padding's page
    out = worker.run(batch, layer, q, k, v)
    want = reference(q[:6].view(6, HEADS_Q, DIM), *worker.bytes(layer, 1))
    torch.testing.assert_close(out[:6].double(), want, atol=CLOSE, rtol=0)
    assert (out[6:] == 0).all()
    again = worker.run(batch, layer, q, None, None)            # keys of a layer that has written before
    assert torch.equal(again, out)
    idle = ForwardBatch(forward_mode=ForwardMode.IDLE, batch_size=0, input_ids=torch.zeros(0), req_pool_indices=torch.zeros(0, dtype=torch.int64),
                        seq_lens=torch.zeros(0, dtype=torch.int64), out_cache_loc=torch.zeros(0, dtype=torch.int64), seq_lens_sum=0)
    worker.backend.init_forward_metadata(idle)
    assert worker.backend.forward(q[:0], k[:0], v[:0], layer, idle).shape == (0, HEADS_Q * DIM)


# ---- verification of drafts -----------------------------------------------------------------------------------------------

def tree(n, seed):
    """bool[n, n]: each token sees its ancestors and itself."""
    g = torch.Generator().manual_seed(seed)
    seen = torch.eye(n, dtype=torch.bool)
    for i in range(1, n):
        seen[i] |= seen[int(torch.randint(i, (1,), generator=g, device="cpu"))]
    return seen


def verify_input(kind, mask, prefixes, n_draft):
    if kind == "ngram":
        return NgramVerifyInput(draft_token=torch.zeros(len(prefixes) * n_draft, dtype=torch.int64), custom_mask=mask, draft_token_num=n_draft)
    return EagleVerifyInput(draft_token=torch.zeros(len(prefixes) * n_draft, dtype=torch.int64), custom_mask=mask, positions=None, retrieve_index=None, retrieve_next_token=None,
                            retrieve_next_sibling=None, retrieve_cum_len=None, spec_steps=3, topk=2, draft_token_num=n_draft, capture_hidden_mode=CaptureHiddenMode.FULL,
                            seq_lens_sum=sum(prefixes), seq_lens_cpu=torch.tensor(prefixes, device="cpu"))


@pytest.mark.parametrize("form", ["FULL_MASK", "QLEN_ONLY", None])
@pytest.mark.parametrize("n_draft,kind,window,twin", [(7, "eagle", -1, False), (7, "ngram", 4, True), (40, "eagle", 23, False)])
def test_target_verify_sees_the_tree(form, n_draft, kind, window, twin):
    worker, layer, prefixes = Worker(twin=twin), layer_of(0, window), [21, 32]
    for row, n in zip((1, 2), prefixes):
        worker.run(worker.batch(ForwardMode.EXTEND, [row], [n]), layer, *rows(n, seed=row))
    trees = [tree(n_draft, 20 + i) if form else torch.ones(n_draft, n_draft, dtype=torch.bool).tril() for i in range(2)]
    full = torch.cat([torch.cat((torch.ones(n_draft, p, dtype=torch.bool), t), 1).flatten() for p, t in zip(prefixes, trees)])
    mask = {"FULL_MASK": full, "QLEN_ONLY": torch.stack(trees).flatten(), None: None}[form]
    batch = worker.batch(ForwardMode.TARGET_VERIFY, [1, 2], [n_draft] * 2, verify_input(kind if form else "eagle", mask, prefixes, n_draft))
    q, k, v = rows(2 * n_draft, seed=9)
    out = worker.run(batch, layer, q, k, v).view(2, n_draft, HEADS_Q, DIM)
    for i, (p, t) in enumerate(zip(prefixes, trees)):
        keep = torch.cat((torch.ones(n_draft, p, dtype=torch.bool), t), 1)
        if window >= 0:
            keep &= in_window(n_draft, p + n_draft, window)
        want = reference(q.view(2, n_draft, HEADS_Q, DIM)[i], *worker.bytes(layer, 1 + i), keep)
        torch.testing.assert_close(out[i].double(), want, atol=CLOSE, rtol=0)
    if form:   # and so sees SGLang's own kernel, over the same pool
        from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd
        lens = torch.tensor(prefixes)
        kept = lens.clamp(max=window) if window >= 0 else lens   # of what lies before, as TritonAttnBackend hands it over
        slots = [worker.requests.req_to_token[r, p - n:p].long() for r, p, n in zip((1, 2), prefixes, kept.tolist())]
        slots = [worker.pool.translate_loc_from_full_to_swa(s) for s in slots] if twin else slots
        theirs = torch.empty(2 * n_draft, HEADS_Q, DIM)
        extend_attention_fwd(q.view(-1, HEADS_Q, DIM), k.view(-1, HEADS, DIM), v.view(-1, HEADS, DIM), theirs, *worker.pool.get_kv_buffer(0),
                             torch.tensor([0, n_draft, 2 * n_draft]), torch.tensor([0, *kept.cumsum(0)]), torch.cat(slots), full, True,
                             torch.tensor([0, *(n_draft * (lens + n_draft)).cumsum(0)]), n_draft, 1.0, 1.0, sm_scale=DIM ** -0.5, sliding_window_size=window,
                             window_kv_offsets=lens - kept)
        torch.testing.assert_close(out.view_as(theirs), theirs, atol=2 * CLOSE, rtol=0)


@pytest.mark.skipif(DEVICE != "cpu", reason="looked for on the CPU only: a GPU would be waited for")
def test_masks_that_no_tree_has_are_refused():
    worker, layer = Worker(), layer_of(0)
    worker.run(worker.batch(ForwardMode.EXTEND, [1], [21]), layer, *rows(21))
    hidden = torch.ones(5, 26, dtype=torch.bool)
    hidden[3, 7] = False
    for mask, why in ((hidden.flatten(), "before the draft"), (torch.ones(99, dtype=torch.bool), "99 elements")):
        batch = worker.batch(ForwardMode.TARGET_VERIFY, [1], [5], verify_input("eagle", mask, [21], 5))
        worker.lens[1] = 21
        with pytest.raises(NotImplementedError, match=why):
            worker.backend.init_forward_metadata(batch)


# ---- what is refused, and where it registers -------------------------------------------------------------------------------

def test_what_is_not_there_is_said(monkeypatch):
    worker = Worker()
    q, k, v = rows(4)
    for more, why in ((dict(is_cross_attention=True), "cross"), (dict(attn_type=AttentionType.ENCODER_ONLY), "ENCODER_ONLY"), (dict(logit_cap=1.0, logit_capping_method="log"), "tanh"),
                      (dict(use_irope=True), "chunks"), (dict(pos_encoding_mode="ALIBI"), "ALIBI")):
        batch = worker.batch(ForwardMode.EXTEND, [1], [4])
        with pytest.raises(NotImplementedError, match=f"octavo: .*{why}"):
            worker.run(batch, layer_of(0, **more), q, k, v)
    with pytest.raises(NotImplementedError, match="score_mod"):
        worker.run(batch, layer_of(0), q, k, v, score_mod=lambda *_: None)
    for mode, more, why in ((ForwardMode.DLLM_EXTEND, {}, "diffusion"), (ForwardMode.DRAFT_EXTEND_V2, {}, "draft"), (ForwardMode.EXTEND, dict(encoder_lens=torch.tensor([1])), "encoders")):
        with pytest.raises(NotImplementedError, match=why):
            worker.backend.init_forward_metadata(worker.batch(mode, [1], [1], **more))
    with pytest.raises(NotImplementedError, match="cuda-graph-backend"):
        worker.backend.init_cuda_graph_state(1, 1)
    with pytest.raises(NotImplementedError, match="cuda-graph-backend"):
        worker.backend.init_forward_metadata_out_graph(batch)
    with pytest.raises(NotImplementedError, match="MLA"):
        ATTENTION_BACKENDS["octavo"](types.SimpleNamespace(use_mla_backend=True))
    with pytest.raises(NotImplementedError, match="nhd.*MHATokenToKVPool, layout hnd"):
        monkeypatch.setenv("SGLANG_USE_HND_KVCACHE", "1")
        other = Worker()
        other.run(other.batch(ForwardMode.EXTEND, [1], [4]), layer_of(0), q, k, v)


REGISTERED = """
import sys
from sglang.srt.plugins import load_plugins
load_plugins()
assert "octavo.sglang" not in sys.modules   # it comes with the first model
from sglang.srt.server_args import prepare_server_args
arguments = prepare_server_args(["--model-path", sys.argv[1], "--device", "cpu", "--skip-tokenizer-init", "--attention-backend", "octavo", "--kv-cache-dtype", "fp8_e4m3", "--page-size", "16"])
print("BACKEND", arguments.attention_backend)
"""


@whole_engine
@pytest.mark.parametrize("plugins", ["octavo", "another"])
def test_sglang_takes_it_by_its_name(plugins, tmp_path):
    """In a process that loads plug-ins as all of SGLang's do, through the installed entry point."""
    import transformers
    transformers.LlamaConfig(vocab_size=64, hidden_size=64, num_hidden_layers=1, num_attention_heads=1, architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    done = subprocess.run([sys.executable, "-c", REGISTERED, str(tmp_path)], capture_output=True, text=True, timeout=300, env={**os.environ, "SGLANG_PLUGINS": plugins, "HF_HUB_OFFLINE": "1"})
    if plugins == "octavo":
        assert done.returncode == 0 and "BACKEND octavo" in done.stdout, done.stderr[-3000:]
    else:
        assert done.returncode != 0 and "invalid choice: 'octavo'" in done.stderr, done.stderr[-3000:]


def test_a_calibration_file_is_taken_or_refused_by_name(tmp_path):
    scales, e4m3 = [(0.05 * (i + 1), 0.01) for i in range(LAYERS)], dict(dtype=torch.float8_e4m3fn)
    fits = calibration(tmp_path / "fits.json", scales, model_type="llama")
    q, k, v = rows(20)
    for given in (dict(calibration=fits), dict(quantization_param_path=fits), dict(calibration=fits, twin=True)):
        worker, layer = Worker(**e4m3, **given), layer_of(2)
        worker.run(worker.batch(ForwardMode.EXTEND, [1], [20]), layer, q, k, v)
        for got, x, scale in zip(worker.bytes(layer, 1), (k, v), scales[2]):
            assert torch.equal(got.view(torch.uint8), torch.from_numpy(octavo.quantize(x.view(20, HEADS, DIM).cpu().numpy(), "e4m3fn", scale)).to(DEVICE))
    theirs = tmp_path / "theirs.json"   # SGLang's own form: its option has given the layers their numbers, octavo's own gives them here
    theirs.write_text(json.dumps({"model_type": "llama", "kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"0": {str(i): 0.5 for i in range(LAYERS)}}}}))
    assert Worker(**e4m3, quantization_param_path=str(theirs)).backend.calibration == {} and Worker(**e4m3, calibration=str(theirs)).backend.calibration == {i: (0.5, 0.5) for i in range(LAYERS)}
    for name in ("calibration", "quantization_param_path"):
        for n in (LAYERS - 1, LAYERS + 1):
            with pytest.raises(octavo.BadData, match=f"is of {n} layers; the model has {LAYERS}"):
                Worker(**e4m3, **{name: calibration(tmp_path / "n.json", [(1.0, 1.0)] * n)})
        with pytest.raises(octavo.BadData, match="is of a model of type 'qwen3'; this model's is 'llama'"):
            Worker(**e4m3, **{name: calibration(tmp_path / "other.json", scales, model_type="qwen3")})
        with pytest.raises(NotImplementedError, match="K of layer 0 is to be kept in f16, and SGLang's pool keeps it in e4m3fn:layer"):
            Worker(**e4m3, **{name: calibration(tmp_path / "f16.json", scales, "f16")})
    with pytest.raises(NotImplementedError, match="exclude each other"):
        Worker(**e4m3, calibration=fits, quantization_param_path=fits)


@whole_engine
def test_an_exported_file_is_read_by_sglangs_loader(tmp_path):
    """`octavo export-scales`, for two ranks; and what SGLang's kernels get of it (doc/SGLANG.md)."""
    from sglang.srt.model_loader.weight_utils import kv_cache_scales_loader
    from sglang.srt.models.gemma3_causal import Gemma3ForCausalLM
    from sglang.srt.models.llama import LlamaForCausalLM, LlamaModel
    from transformers import LlamaConfig
    program = os.environ.get("OCTAVO_TEST_PROGRAM", os.path.join(ROOT, "build", "release", "octavo"))
    if not os.path.exists(program):
        pytest.skip("no build/release/octavo")
    scales, out = [(0.05 * (i + 1), 0.11) for i in range(LAYERS)], str(tmp_path / "kv_cache_scales.json")
    own = calibration(tmp_path / "own.json", scales, model_type="llama")
    subprocess.run([program, "export-scales", "--kv-scales", own, "-o", out, "--tp", "2"], check=True, capture_output=True)
    for rank in range(2):
        assert dict(kv_cache_scales_loader(out, rank, 2, LAYERS, "llama")) == {i: pytest.approx(max(s), rel=1e-6) for i, s in enumerate(scales)}
    assert list(kv_cache_scales_loader(out, 0, 2, LAYERS, "qwen2")) == []   # of another model: as if there were no file
    assert callable(LlamaForCausalLM.load_kv_cache_scales) and not hasattr(Gemma3ForCausalLM, "load_kv_cache_scales")
    layer = layer_of(0)
    LlamaModel.load_kv_cache_scales(types.SimpleNamespace(_kv_cache_parallel_layout=(0, 2), config=LlamaConfig(num_hidden_layers=LAYERS),
                                                          layers=[types.SimpleNamespace(self_attn=types.SimpleNamespace(attn=layer))] * LAYERS), out)
    # What its kernels take is k_scale as a tensor, or k_scale_float: neither is there.
    assert isinstance(layer.k_scale, float) and layer.k_scale_float is None and layer.v_scale_float is None


# ---- whole engines ---------------------------------------------------------------------------------------------------------

def engines(jobs, fails=None):
    """The jobs' results in one process of SGLang, whose own processes load the installed plug-in; or a text that a failing one says."""
    done = subprocess.run([sys.executable, os.path.join(HERE, "engine.py")], input=json.dumps(jobs), capture_output=True, text=True, timeout=900,
                          env={**{k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}, "HF_HUB_OFFLINE": "1"})
    line = [x for x in done.stdout.splitlines() if x.startswith("RESULTS ")]
    if fails:
        assert not line and fails in done.stderr + done.stdout, done.stderr[-4000:]
        return None
    assert line, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(line[-1][8:])


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return {name: small_models.save(name, tmp_path_factory.mktemp(name)) for name in ("llama", "gemma3")}


@pytest.fixture(scope="module")
def runs(checkpoints, tmp_path_factory):
    """octavo's results, of one process: in f32, over one pool and twin pools, and in 8 bits."""
    batches, scales = small_models.prompts(), [(0.02 * (i + 1), 0.01) for i in range(3)]
    long, file = max(batches[0], key=len), calibration(tmp_path_factory.mktemp("scales") / "fits.json", scales)

    def job(name, page_size=16, batches=(), **options):
        return dict(model=checkpoints[name], tokens=16, batches=batches, logprobs=[long], options=dict(attention_backend="octavo", dtype="float32", page_size=page_size, **options))

    names = "llama", "gemma3", "e4m3", "e5m2", "gemma3 e4m3"
    return types.SimpleNamespace(long=long, scales=scales, job=job, **{"of": dict(zip(names, engines([
        job("llama", 16, batches), job("gemma3", 1, batches), job("llama", kv_cache_dtype="fp8_e4m3", quantization_param_path=file), job("llama", kv_cache_dtype="fp8_e5m2"),
        # A model for which SGLang takes no file, over twin pools.
        job("gemma3", kv_cache_dtype="fp8_e4m3", json_model_override_args=json.dumps({"octavo_calibration": file}))])))})


@whole_engine
def test_tokens_are_stock_sglangs(checkpoints, runs):
    """Prefix hits, prompts in chunks, mixed batches, twin pools: all as SGLang makes them."""
    stock = engines([dict(model=checkpoints[m], tokens=16, batches=small_models.prompts(), options=dict(attention_backend="torch_native", dtype="float32", page_size=p))
                     for m, p in (("llama", 16), ("gemma3", 1))])
    for a, b in zip(stock, (runs.of["llama"], runs.of["gemma3"])):
        assert a["tokens"] == b["tokens"] and len(a["tokens"]) == 20 and a["hits"] == b["hits"] > 0


@whole_engine
def test_eight_bits_are_what_the_bytes_mean(checkpoints, runs):
    """The model in transformers over the same bytes. The scales are a calibration file's, K's and V's each."""
    import transformers
    import octavo.transformers
    models = {name: transformers.AutoModelForCausalLM.from_pretrained(checkpoints[name], attn_implementation="octavo", dtype=torch.float32).eval() for name in ("llama", "gemma3")}
    ids, loss = torch.tensor([runs.long]), {}
    for run, kind, name, numbers in (("llama", "llama", "f32", None), ("e4m3", "llama", "e4m3fn", runs.scales), ("e5m2", "llama", "e5m2", [(1.0, 1.0)] * 3),
                                     ("gemma3", "gemma3", "f32", None), ("gemma3 e4m3", "gemma3", "e4m3fn", runs.scales)):
        model = models[kind]
        form = octavo.KVFormat(name, "layer" if numbers else "none")
        with torch.inference_mode():
            logits = model(ids, past_key_values=octavo.transformers.OctavoCache(model.config, (form, form), scales=numbers)).logits[0].log_softmax(-1)
        want, exact, got = logits[:-1].gather(1, ids[0, 1:, None])[:, 0].numpy(), *(np.array(runs.of[x]["logprobs"][0]) for x in (kind, run))
        loss[kind, name] = np.abs(got - exact).mean()
        error = np.abs(got - want).mean()
        # The last bit of a number may round another to its neighbour in the next layer's.
        assert error < (1e-4 if name == "f32" else loss[kind, name] / 3), (kind, name, error, loss)
    assert 0 < loss["llama", "e4m3fn"] < loss["llama", "e5m2"] and loss["gemma3", "e4m3fn"] > 0


@whole_engine
def test_a_file_that_wants_other_formats_is_refused_when_the_engine_starts(runs, tmp_path):
    file = calibration(tmp_path / "not.json", runs.scales, ["e4m3fn:layer", "i8+rot", "e4m3fn:layer"], "e4m3fn:layer")
    engines([runs.job("llama", kv_cache_dtype="fp8_e4m3", quantization_param_path=file)], fails="K of layer 1 is to be kept in i8:token+rot, and SGLang's pool keeps it in e4m3fn:layer")


@whole_engine
def test_the_block_of_the_page_runs(checkpoints, tmp_path):
    with open(os.path.join(ROOT, "doc", "SGLANG.md"), encoding="utf-8") as file:
        block = re.search(r"^```py\n(.*?)^```$", file.read(), re.M | re.S).group(1)
    (tmp_path / "block.py").write_text(f"checkpoint, ids = {checkpoints['llama']!r}, {list(range(3, 60))!r}\n{block}")
    done = subprocess.run([sys.executable, "block.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0 and re.search(r"^\[\d+(, \d+){7}\]$", done.stdout, re.M), done.stdout + done.stderr[-3000:]
