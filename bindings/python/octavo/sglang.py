"""octavo for SGLang: an attention backend over its token pools, in 16 and in 8 bits. doc/SGLANG.md.

The one place that knows SGLang's conventions:
  pool     K and V are [token slots, heads, dim] (layout nhd): octavo's pages [slots / page size, page size, heads, dim]. Slot 0's page is padding's, and never a request's
  slots    a pool's slot is page * page size + offset; out_cache_loc is the full pool's, a window's layer of a SWAKVPool goes through full_to_swa_index_mapping (-1 stays
           -1, and is written nowhere; what has left the window maps to slot 0, which no window reads)
  lengths  seq_lens holds a step's own tokens, but for target_verify, which counts them on top
  window   a layer's sliding_window_size does not count the token itself, octavo's window does: one more; -1: no window
  scales   real value = byte * scale: layer.k_scale and layer.v_scale (tensors, numbers, or None: 1), which the write divides by; a pool of 16 bits has none.
           --quantization-param-path gives K and V one number a layer; a file of octavo's has theirs of each, which go before. SGLang takes that option for
           fp8_e4m3 only of models whose classes load scales; "octavo_calibration" in --json-model-override-args is a file for any
  masks    target_verify's custom_mask: bytes [request][draft row][keys], of all its keys (FULL_MASK) or of the draft's alone (QLEN_ONLY); None: a chain
  log-sums natural logarithms, [rows, heads]
"""
from __future__ import annotations

from dataclasses import dataclass, field

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

from . import _octavo
from ._calibration import read_calibration
from .torch import _context

_FORMS = {torch.float32: _octavo.KVFormat("f32"), torch.float16: _octavo.KVFormat("f16"), torch.bfloat16: _octavo.KVFormat("bf16"),
          torch.float8_e4m3fn: _octavo.KVFormat("e4m3fn", "layer"), torch.float8_e4m3fnuz: _octavo.KVFormat("e4m3fnuz", "layer"),
          torch.float8_e5m2: _octavo.KVFormat("e5m2", "layer")}
_FLOATS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def _refuse(what: str):
    raise NotImplementedError(f"octavo: {what}")


# ---- conventions ------------------------------------------------------------------------------------------------------

def window_tokens(sliding_window_size: int | None) -> int:
    """Keys that a query sees, itself included; 0: all."""
    return 0 if sliding_window_size is None or sliding_window_size < 0 else int(sliding_window_size) + 1


def pages_of(buffer: torch.Tensor, page_size: int) -> torch.Tensor:
    """[pages, page size, heads, dim]: a view of a pool's buffer, 8-bit floats as their bits."""
    if buffer.element_size() == 1:
        buffer = buffer.view(torch.uint8)
    n = buffer.shape[0] // page_size
    return buffer[:n * page_size].unflatten(0, (n, page_size))


def own_pool(pool, layer_id: int) -> tuple[MHATokenToKVPool, bool]:
    """The pool that holds a layer, and whether its slots are those of the window's side."""
    swa = isinstance(pool, SWAKVPool) and pool.layers_mapping[layer_id][1]
    own = (pool.swa_kv_pool if swa else pool.full_kv_pool) if isinstance(pool, SWAKVPool) else pool
    if not isinstance(own, MHATokenToKVPool) or own.kv_cache_layout != "nhd" or own.requires_physical_write_loc:
        _refuse(f"pages of layout nhd in an MHATokenToKVPool, or in two of a SWAKVPool; this is {type(own).__name__}, layout {getattr(own, 'kv_cache_layout', 'of its own')}")
    if own.is_quantized_kv_cache or own.dtype not in _FORMS:
        _refuse(f"no pages for a pool of {own.dtype} with {type(own.quant_method).__name__}")
    return own, swa


def calibrated(own_path: str | None, sglangs_path: str | None, config, pool) -> dict:
    """The (k, v) scales of each layer of a pool: of the file of "octavo_calibration" in --json-model-override-args, or of --quantization-param-path's where that is octavo's
    (SGLang has given layers the numbers of any other). config: the model's, of its text. BadData where the file is of another model, NotImplementedError where it wants other formats."""
    if own_path and sglangs_path:
        _refuse("octavo_calibration and --quantization-param-path exclude each other")
    file = read_calibration(own_path or sglangs_path) if own_path or sglangs_path else None
    if file is None:
        return {}
    file.check_model(config.model_type, config.num_hidden_layers)
    if not file.version and not own_path:
        return {}
    layers = pool.layers_mapping if isinstance(pool, SWAKVPool) else range(pool.start_layer, pool.start_layer + pool.layer_num)
    return {i: file.scales_in("SGLang's pool", i, (_FORMS[own_pool(pool, i)[0].dtype],) * 2) for i in layers}


def verify_words(custom_mask: torch.Tensor, prefix_lens: torch.Tensor, n_draft: int) -> torch.Tensor:
    """target_verify's mask as octavo's: uint32[requests * n_draft, words], bit t of a row: it sees the t-th token of its draft. prefix_lens on the mask's device."""
    n = prefix_lens.shape[0]
    rows = torch.arange(n * n_draft, device=custom_mask.device)
    prefix = prefix_lens.long()
    each = n_draft * (prefix + n_draft)                    # of a request in a FULL_MASK
    if custom_mask.numel() == n * n_draft * n_draft:
        seen = custom_mask.reshape(-1, n_draft) != 0
    else:
        checked = custom_mask.device.type == "cpu"         # a GPU would be waited for
        if checked and custom_mask.numel() != int(each.sum()):
            _refuse(f"custom_mask has {custom_mask.numel()} elements; {n} requests of {n_draft} drafts have {n * n_draft * n_draft}, or {int(each.sum())} with what they stand on")
        request = rows // n_draft
        at = (each.cumsum(0) - each)[request] + rows % n_draft * (prefix + n_draft)[request] + prefix[request]
        flat = custom_mask.reshape(-1) != 0
        seen = flat[at[:, None] + torch.arange(n_draft, device=at.device)]
        if checked and flat.sum() - seen.sum() != flat.numel() - seen.numel():
            _refuse("custom_mask hides keys before the draft's")
    words = -(-n_draft // 32)
    bits = torch.zeros(len(rows), words * 32, dtype=torch.int64, device=seen.device)
    bits[:, :n_draft] = seen
    packed = (bits.view(-1, words, 32) << torch.arange(32, device=seen.device)).sum(-1)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32).view(torch.uint32)


# ---- a step -----------------------------------------------------------------------------------------------------------

@dataclass
class Step:
    """A forward pass, for all layers. Tables are made for the sides of a pool that some layer asks for."""
    n_rows: int
    n_keys: int                    # of the longest sequence
    qo_indptr: torch.Tensor        # int32
    seq_lens: torch.Tensor         # int32
    req_pool_indices: torch.Tensor
    mask: torch.Tensor | None
    tables: dict = field(default_factory=dict)
    ready: set = field(default_factory=set)     # plans that were updated for it


def _ints(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.int32).contiguous()


def _step(batch, max_context_len: int) -> Step:
    mode, spec = batch.forward_mode, batch.spec_info
    for what, wrong in (("diffusion models", mode.is_dllm_extend()), ("draft models; give them a backend of SGLang's by --speculative-draft-attention-backend",
                        mode.is_draft_extend_v2() or spec is not None and spec.is_draft_input() and getattr(spec, "kv_indptr", None) is not None),
                        ("encoders and cross-attention", batch.encoder_lens is not None), ("context parallelism", batch.attn_cp_metadata or batch.attn_dcp_metadata),
                        ("ragged verification", spec is not None and spec.ragged_verify_layout is not None), ("replay of encoders", batch.encoder_swa_replay),
                        ("several items in one prompt", batch.multi_item_delimiter_indices is not None)):
        if wrong:
            _refuse(f"not under SGLang: {what}")
    n, device = len(batch.req_pool_indices), batch.seq_lens.device
    lens, on_host, mask = batch.seq_lens, batch.seq_lens_cpu, None
    if mode.is_target_verify():
        drafts = spec.num_tokens_per_req
        if drafts <= 0:
            _refuse("target_verify without num_tokens_per_req")
        if spec.custom_mask is not None and spec.custom_mask.numel():
            mask = verify_words(spec.custom_mask, lens, drafts)
        qo = torch.arange(n + 1, device=device) * drafts
        lens, on_host, n_rows = lens + drafts, None if on_host is None else on_host + drafts, n * drafts
    elif mode.is_decode():
        qo, n_rows = torch.arange(n + 1, device=device), n
    else:
        qo = torch.nn.functional.pad(batch.extend_seq_lens.long().cumsum(0), (1, 0))
        n_rows = sum(batch.extend_seq_lens_cpu) if batch.extend_seq_lens_cpu is not None else int(qo[-1])
    if on_host is None and device.type == "cpu":
        on_host = lens
    n_keys = int(on_host.max()) if on_host is not None and n else max_context_len   # else a GPU would be waited for
    return Step(n_rows, n_keys, _ints(qo), _ints(lens), batch.req_pool_indices.long(), mask)


# ---- what SGLang asks for ---------------------------------------------------------------------------------------------

class OctavoAttnBackend(AttentionBackend):
    """The target model's attention, eager. One of a ModelRunner; a model's forward is one thread."""

    def __init__(self, model_runner):
        super().__init__()
        if getattr(model_runner, "use_mla_backend", False):
            _refuse("no MLA models under SGLang")
        self.device = torch.device(model_runner.device)
        self.req_to_token_pool, self.token_to_kv_pool = model_runner.req_to_token_pool, model_runner.token_to_kv_pool
        self.plans, self.layers, self.step, self.swa_slots = {}, {}, None, None
        model = model_runner.model_config
        self.calibration = calibrated(getattr(model.hf_config, "octavo_calibration", None), model_runner.server_args.quantization_param_path, model.hf_text_config, self.token_to_kv_pool)

    def support_triton(self) -> bool:
        return self.device.type != "cpu"

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        _refuse("no CUDA graphs under SGLang; start it with --cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled")

    def init_forward_metadata(self, forward_batch) -> None:
        self.step = self.swa_slots = None
        if forward_batch.forward_mode.is_idle():
            return
        self.step = _step(forward_batch, self.req_to_token_pool.max_context_len)
        if isinstance(self.token_to_kv_pool, SWAKVPool) and forward_batch.out_cache_loc is not None:
            self.swa_slots = self.token_to_kv_pool.translate_loc_from_full_to_swa(forward_batch.out_cache_loc)

    def init_forward_metadata_out_graph(self, forward_batch, in_capture: bool = False) -> None:
        self.init_cuda_graph_state(0, 0)

    def _table(self, step: Step, page_size: int, swa: bool) -> torch.Tensor:
        table = step.tables.get((page_size, swa))
        if table is None:   # a request's slots come page by page, so that a page's first says which it is
            slots = self.req_to_token_pool.req_to_token[step.req_pool_indices, :step.n_keys:page_size].long()
            if swa:
                slots = self.token_to_kv_pool.translate_loc_from_full_to_swa(slots)
            table = step.tables[page_size, swa] = _ints(slots // page_size)
        return table

    def _kv(self, layer) -> tuple[_octavo.KVLayer, bool]:
        """octavo's view of a layer's pages, made again where SGLang has laid them, or its scales, elsewhere. Scales that are tensors are read where they lie, at every run."""
        own, swa = own_pool(self.token_to_kv_pool, layer.layer_id)
        k, v = (pages_of(b, own.page_size) for b in self.token_to_kv_pool.get_kv_buffer(layer.layer_id))
        form, scales = _FORMS[own.dtype], (None, None)
        if form.scale == "layer":
            scales = tuple(1.0 if s is None else s.detach() if isinstance(s, torch.Tensor) else float(s) for s in self.calibration.get(layer.layer_id, (layer.k_scale, layer.v_scale)))
        of = (k.data_ptr(), v.data_ptr(), k.shape, v.shape, *(s.data_ptr() if isinstance(s, torch.Tensor) else s for s in scales))
        known = self.layers.get(layer.layer_id)
        if known is None or known[0] != of:
            spec = _octavo.KVSpec(k.shape[2], k.shape[3], dim_v=v.shape[3], page_size=own.page_size, k=form, v=form)
            given = {f"{side}_scale": s.reshape(1) if isinstance(s, torch.Tensor) else torch.full((1,), s, device=k.device) for side, s in zip("kv", scales) if s is not None}
            known = self.layers[layer.layer_id] = (of, _octavo.KVLayer(spec, k, v, **given, context=_context(k.device)))
        return known[1], swa

    def _plan(self, step: Step, layer, kv: _octavo.KVLayer, swa: bool, q: torch.Tensor, out: torch.Tensor, sink: bool) -> _octavo.AttentionPlan:
        key = (layer.tp_q_head_num, kv.spec, q.dtype, out.dtype, layer.scaling, layer.logit_cap, layer.sliding_window_size, sink, step.mask is not None, swa)
        plan, limits = self.plans.get(key, (None, None))
        needs = dict(max_sequences=len(step.seq_lens), max_rows=max(step.n_rows, 1), max_keys=step.n_keys) if q.device.type != "cpu" else {}
        if plan is None or any(n > limits[name] for name, n in needs.items()):
            # A GPU's plan takes its memory once, for the largest step: powers of two.
            limits = {name: max(1 << (n - 1).bit_length(), (limits or needs)[name]) for name, n in needs.items()}
            plan = _octavo.AttentionPlan(layer.tp_q_head_num, kv.spec, q_dtype=_FLOATS[q.dtype], out_dtype=_FLOATS[out.dtype], sm_scale=float(layer.scaling),
                                         softcap=float(layer.logit_cap), window=window_tokens(layer.sliding_window_size), sink=sink, mask=step.mask is not None,
                                         context=_context(q.device), **limits)
            self.plans[key] = plan, limits
            step.ready.discard(key)
        if key not in step.ready:
            plan.update(step.qo_indptr, self._table(step, kv.spec.page_size, swa), step.seq_lens, n_pages=kv.n_pages)
            step.ready.add(key)
        return plan

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None, return_lse=False, **more):
        for what, wrong in (("cross-attention", layer.is_cross_attention), (f"attention of type {layer.attn_type}", layer.attn_type != AttentionType.DECODER),
                            ("soft caps that are no tanh", layer.logit_cap > 0 and layer.logit_capping_method != "tanh"), ("temperatures by position", layer.xai_temperature_len > 0),
                            (f"positions by {layer.pos_encoding_mode}", layer.pos_encoding_mode != "NONE"), ("attention in chunks (iRoPE)", layer.use_irope)):
            if wrong:
                _refuse(f"not under SGLang: {what}")
        if given := [name for name, value in more.items() if value is not None]:
            _refuse(f"attention under SGLang takes no {', '.join(given)}")
        if q.dtype not in _FLOATS:
            _refuse(f"attention in float32, float16 or bfloat16, not in {q.dtype}")
        step = self.step
        kv, swa = self._kv(layer)
        if save_kv_cache and k is not None:   # without: written before, or another layer's
            slots = self.swa_slots if swa else forward_batch.out_cache_loc
            n = len(forward_batch.out_cache_loc)
            _octavo.kv_write(kv, k.view(-1, layer.tp_k_head_num, layer.qk_head_dim), v.view(-1, layer.tp_v_head_num, layer.v_head_dim), _ints(slots[:n]))
        q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        given = forward_batch._attn_output
        out = (q.new_empty(len(q), layer.tp_q_head_num * layer.v_head_dim) if given is None else given).view(-1, layer.tp_q_head_num, layer.v_head_dim)
        lse = torch.empty(len(q), layer.tp_q_head_num, dtype=torch.float32, device=q.device) if return_lse else None
        sink = None if sinks is None else sinks.detach().to(torch.float32).contiguous()
        n = step.n_rows
        out[n:] = 0   # rows that fill up a batch
        if n:
            self._plan(step, layer, kv, swa, q, out, sink is not None).run(q[:n], kv, out=out[:n], sink=sink, mask=step.mask, **({"lse": lse[:n]} if return_lse else {}))
        out = out.view(-1, layer.tp_q_head_num * layer.v_head_dim)
        return (out, lse) if return_lse else out

    forward_decode = forward_extend   # a step says what its rows are
