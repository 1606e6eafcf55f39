"""octavo for vLLM: an attention backend over its paged key/value cache, in 16 and in 8 bits. doc/VLLM.md.

The one place that knows vLLM's conventions:
  pages    kv_cache is [blocks, kv heads, block size, K and V together] (layout LBHNC); of a block and head, K's rows come first, then V's, as CPU_ATTN has them
  slots    int64, block * block size + offset; -1 is padding and written nowhere
  window   vLLM's sliding_window counts the token itself, as octavo's does; None: no window
  scales   real value = byte * scale: layer._k_scale and layer._v_scale, which the write divides by; a cache of 16 bits has none.
           additional_config={"octavo_calibration": PATH}: those of a calibration file
  log-sums natural logarithms (lse_base_on_e)
"""
from __future__ import annotations

from dataclasses import dataclass, field

import torch
from vllm.model_executor.models.utils import extract_layer_index
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder, AttentionType, MultipleOf
from vllm.v1.kv_cache_layout import KVCacheLayout

from . import _octavo
from ._calibration import read_calibration
from .torch import _context

_FLOATS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_NAMED = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_FP8 = {"fp8": "e4m3fn", "fp8_e4m3": "e4m3fn", "fp8_e5m2": "e5m2"}


# ---- conventions ------------------------------------------------------------------------------------------------------

def kv_format(kv_cache_dtype: str, model_dtype: torch.dtype) -> _octavo.KVFormat:
    """What a kv_cache_dtype of vLLM's says about pages, exactly. fp8 is e4m3fnuz on gfx942, as vLLM has it there."""
    if kv_cache_dtype in _FP8:
        fnuz = kv_cache_dtype != "fp8_e5m2" and current_platform.is_rocm() and current_platform.is_fp8_fnuz()
        return _octavo.KVFormat("e4m3fnuz" if fnuz else _FP8[kv_cache_dtype], "layer")
    if kv_cache_dtype != "auto" and kv_cache_dtype not in _NAMED:
        raise NotImplementedError(f"octavo: no pages for kv_cache_dtype {kv_cache_dtype!r}")
    return _octavo.KVFormat(_FLOATS[_NAMED.get(kv_cache_dtype, model_dtype)])


def window_tokens(sliding_window: int | None) -> int:
    """Keys that a query sees, itself included; 0: all."""
    return 0 if sliding_window is None or sliding_window <= 0 else int(sliding_window)


def pages_of(kv_cache: torch.Tensor, form: _octavo.KVFormat) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V, [blocks, kv heads, block size, dim]: views of vLLM's tensor; 8-bit floats as their bits."""
    if form.scale == "layer":
        kv_cache = kv_cache.view(torch.uint8)
    blocks, heads, size, _ = kv_cache.shape
    return kv_cache.view(blocks, heads, 2 * size, -1).chunk(2, dim=2)


@torch.no_grad()
def calibrate(path: str, layer_names: list, vllm_config) -> None:
    """Gives layers the scales of a calibration file. BadData where it is of another model; NotImplementedError where the file has chosen other formats than kv_cache_dtype (and kv_cache_dtype_skip_layers) says."""
    file, model = read_calibration(path), vllm_config.model_config
    file.check_model(model.hf_text_config.model_type, model.hf_text_config.num_hidden_layers)
    for name in layer_names:
        layer = vllm_config.compilation_config.static_forward_context[name]
        form = kv_format(layer.kv_cache_dtype, model.dtype)
        k, v = file.scales_in("vLLM", extract_layer_index(layer.kv_sharing_target_layer_name or name), (form, form))
        if k is not None:
            layer._k_scale.fill_(k)
            layer._v_scale.fill_(v)
            layer._k_scale_float, layer._v_scale_float = k, v


# ---- what vLLM asks for -----------------------------------------------------------------------------------------------

class OctavoBackend(AttentionBackend):
    forward_includes_kv_cache_update = False
    supported_dtypes = list(_FLOATS)
    supported_kv_cache_dtypes = ["auto", *_NAMED, *_FP8]

    @staticmethod
    def get_name() -> str:
        # vLLM looks a backend up by its name again, among the members of its enum.
        return "CPU_ATTN" if current_platform.is_cpu() else "CUSTOM"

    @staticmethod
    def get_impl_cls():
        return OctavoImpl

    @staticmethod
    def get_builder_cls():
        return OctavoBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None):
        return [MultipleOf(8)]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and 16 <= head_size <= 512

    @classmethod
    def supported_kv_cache_layouts(cls):
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type == AttentionType.DECODER


@dataclass
class OctavoMetadata:
    """A step, for all layers of a cache group, and the plans that have been updated for it."""
    num_actual_tokens: int
    qo_indptr: torch.Tensor     # int32, as all of these
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    slot_mapping: torch.Tensor
    plans: dict                 # of the builder: by spec and options
    limits: dict                # of a plan on a GPU
    ready: set = field(default_factory=set)


def _ints(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.int32).contiguous()


class OctavoBuilder(AttentionMetadataBuilder[OctavoMetadata]):
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.plans = {}
        calibration = getattr(vllm_config, "additional_config", {}).get("octavo_calibration")
        if calibration:
            calibrate(calibration, layer_names, vllm_config)
        scheduler = vllm_config.scheduler_config
        self.limits = {} if torch.device(device).type == "cpu" else dict(
            max_sequences=scheduler.max_num_seqs, max_rows=scheduler.max_num_batched_tokens, max_keys=vllm_config.model_config.max_model_len)

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False) -> OctavoMetadata:
        c = common_attn_metadata
        if c.causal is not True:
            raise NotImplementedError("octavo: attention in vLLM is causal")
        return OctavoMetadata(c.num_actual_tokens, _ints(c.query_start_loc), _ints(c.block_table_tensor), _ints(c.seq_lens), _ints(c.slot_mapping), self.plans, self.limits)


class OctavoImpl(AttentionImpl[OctavoMetadata]):
    lse_base_on_e = True

    def __init__(self, num_heads, head_size, scale, num_kv_heads=None, alibi_slopes=None, sliding_window=None, kv_cache_dtype="auto", logits_soft_cap=None,
                 attn_type=AttentionType.DECODER, kv_sharing_target_layer_name=None, sinks=None):
        if alibi_slopes is not None or attn_type != AttentionType.DECODER:
            raise NotImplementedError("octavo: attention in vLLM is a decoder's, without ALiBi")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype, self.sliding_window, self.kv_sharing_target_layer_name = kv_cache_dtype, sliding_window, kv_sharing_target_layer_name
        self.window, self.softcap, self.sinks = window_tokens(sliding_window), float(logits_soft_cap or 0.0), sinks
        self._layer, self._of = None, None

    def _kv(self, layer, kv_cache: torch.Tensor) -> _octavo.KVLayer:
        """octavo's view of a layer's cache, made again where vLLM has laid it elsewhere. Scales are read where they lie, at every run."""
        of = (kv_cache.data_ptr(), kv_cache.shape, layer._k_scale.data_ptr(), layer._v_scale.data_ptr())
        if of != self._of:
            form = kv_format(self.kv_cache_dtype, kv_cache.dtype)
            k, v = pages_of(kv_cache, form)
            spec = _octavo.KVSpec(k.shape[1], k.shape[3], page_size=k.shape[2], k=form, layout="HND")
            scales = dict(k_scale=layer._k_scale.reshape(1), v_scale=layer._v_scale.reshape(1)) if form.scale == "layer" else {}
            self._layer, self._of = _octavo.KVLayer(spec, k, v, **scales, context=_context(kv_cache.device)), of
        return self._layer

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping) -> None:
        _octavo.kv_write(self._kv(layer, kv_cache), key, value, _ints(slot_mapping))

    def run(self, layer, query, kv_cache, step: OctavoMetadata, output, lse=None) -> None:
        """query and output [rows, heads, dim] of the step's rows; lse float32[rows, heads], natural, if it is wanted."""
        kv = self._kv(layer, kv_cache)
        sink = None if self.sinks is None else self.sinks.detach().to(torch.float32).contiguous()
        key = (self.num_heads, kv.spec, query.dtype, output.dtype, self.scale, self.softcap, self.window, sink is not None)
        plan = step.plans.get(key)
        if plan is None:
            plan = step.plans[key] = _octavo.AttentionPlan(
                self.num_heads, kv.spec, q_dtype=_FLOATS[query.dtype], out_dtype=_FLOATS[output.dtype], sm_scale=self.scale, softcap=self.softcap,
                window=self.window, sink=sink is not None, context=_context(query.device), **step.limits)
        if key not in step.ready:
            plan.update(step.qo_indptr, step.block_table, step.seq_lens, n_pages=kv.n_pages)
            step.ready.add(key)
        plan.run(query, kv, out=output, sink=sink, lse=lse)

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None):
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("octavo: no fused quantisation of the output in vLLM")
        if attn_metadata is None:   # vLLM warms up
            return output
        n = attn_metadata.num_actual_tokens
        self.run(layer, query[:n].view(n, self.num_heads, -1), kv_cache, attn_metadata, output[:n].view(n, self.num_heads, -1))
        return output
