"""octavo for PyTorch: the write, attention and the merge as registered operators, so that torch.compile(fullgraph=True) and CUDA graphs take them.

A KV and a Plan wrap a KVLayer and an AttentionPlan. The operators know them by a number, which a compiled graph holds as a constant. Pages are no tensors of
the graph: where it copies what an operator changes, it would copy the pool. A tensor of one number stands for them, which a write says that it changes and
an attention reads, so that they keep their order. Updates of a plan are made outside of the compiled function, before the step.
"""
from __future__ import annotations

import itertools
import weakref

import torch

from . import _octavo

_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "e4m3fn": torch.float8_e4m3fn, "e4m3fnuz": torch.float8_e4m3fnuz, "e5m2": torch.float8_e5m2}
_numbers = itertools.count(1)
_known: weakref.WeakValueDictionary[int, KV | Plan] = weakref.WeakValueDictionary()


def _find(number, kind):
    found = _known.get(int(number))   # a SymInt where one function is compiled for a second plan
    if not isinstance(found, kind):
        _octavo._refuse("octavo.torch", f"no {kind.__name__} has the number {number} any more; keep it alive as long as what was compiled with it")
    return found


class KV:
    """One layer's pages for the operators here. layer: a KVLayer."""

    def __init__(self, layer: _octavo.KVLayer):
        self.layer = layer
        self.order = torch.zeros(1, dtype=torch.int32, device=torch.from_dlpack(layer.k.bits()).device)
        self.number = next(_numbers)
        _known[self.number] = self


class Plan:
    """An AttentionPlan for the operators here: the same arguments, and update() and info as they are there."""

    def __init__(self, heads_q: int, kv: _octavo.KVSpec, **options):
        self.plan = _octavo.AttentionPlan(heads_q, kv, **options)
        self.heads_q, self.dim_v = heads_q, kv.dim_v
        q = _octavo.KVFormat(options.get("q_dtype", "bf16")).dtype
        out = options.get("out_dtype")
        self.out_dtype = _DTYPES[_octavo.KVFormat(out).dtype if out is not None else q if not q.startswith("e") else "bf16"]
        self.number = next(_numbers)
        _known[self.number] = self

    def update(self, *args, **more) -> None:
        self.plan.update(*args, **more)

    @property
    def info(self):
        return self.plan.info


@torch.library.custom_op("octavo::kv_write", mutates_args=("order",))
def _kv_write(order: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor, kv: int) -> None:
    _octavo.kv_write(_find(kv, KV).layer, k, v, slots)


@torch.library.custom_op("octavo::attention", mutates_args=())
def _attention(q: torch.Tensor, order: torch.Tensor, plan: int, kv: int, q_scale: torch.Tensor | None, out_scale: torch.Tensor | None,
               sink: torch.Tensor | None, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    p = _find(plan, Plan)
    out = q.new_empty((q.shape[0], p.heads_q, p.dim_v), dtype=p.out_dtype)
    lse = q.new_empty((q.shape[0], p.heads_q), dtype=torch.float32)
    p.plan.run(q, _find(kv, KV).layer, out=out, lse=lse, q_scale=q_scale, out_scale=out_scale, sink=sink, mask=mask)
    return out, lse


@_attention.register_fake
def _(q, order, plan, kv, q_scale, out_scale, sink, mask):
    p = _find(plan, Plan)
    return q.new_empty((q.shape[0], p.heads_q, p.dim_v), dtype=p.out_dtype), q.new_empty((q.shape[0], p.heads_q), dtype=torch.float32)


@torch.library.custom_op("octavo::merge_states", mutates_args=())
def _merge_states(v: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # A context of a GPU is made once a device; the CPU's is the library's own.
    return _octavo.merge_states(v, s, context=_context(v.device))


@_merge_states.register_fake
def _(v, s):
    return v.new_empty((v.shape[0], v.shape[2], v.shape[3])), v.new_empty((v.shape[0], v.shape[2]))


_contexts: dict[torch.device, _octavo.Context] = {}


def _context(device: torch.device) -> _octavo.Context:
    if device.type == "cpu":
        return _octavo.default_context()
    if device not in _contexts:
        _contexts[device] = _octavo.Context(f"{'hip' if torch.version.hip else 'cuda'}:{device.index}")
    return _contexts[device]


def kv_write(kv: KV, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
    """octavo.kv_write as an operator. k [tokens, heads, dim], v [tokens, heads, dim_v], slots int32[tokens], on the pool's device.

    On a GPU slots beyond the pool are skipped. Raises InvalidArgument.
    """
    torch.ops.octavo.kv_write(kv.order, k, v, slots, kv.number)


def attention(plan: Plan, q: torch.Tensor, kv: KV, *, q_scale: torch.Tensor | None = None, out_scale: torch.Tensor | None = None, sink: torch.Tensor | None = None,
              mask: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """AttentionPlan.run as an operator: (out [rows, heads_q, dim_v], lse float32[rows, heads_q]) for q [rows, heads_q, dim].

    q_scale, out_scale: float32[1]; sink: float32[heads_q]; mask: uint32[rows, words]. The plan was updated for q's rows. Raises InvalidArgument.
    """
    return torch.ops.octavo.attention(q, kv.order, plan.number, kv.number, q_scale, out_scale, sink, mask)


def merge_states(v: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """octavo.merge_states as an operator: v float32[rows, parts, heads, dim], s float32[rows, parts, heads], natural logarithms."""
    return torch.ops.octavo.merge_states(v, s)
