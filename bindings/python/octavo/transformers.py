"""octavo for transformers: `attn_implementation="octavo"` and OctavoCache, a key/value cache of 8 bits an element that generate() takes; for_generate_batch().

The one place that knows transformers' conventions: a window counts the token itself, as here; masks of a whole batch are two-dimensional; rows come as
[batch, heads, tokens, dim]; `s_aux` is the sink's logit, `softcap` comes before the mask. doc/TRANSFORMERS.md. Importing this module registers them.
"""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin, get_layer_types_and_kwargs

from . import _octavo
from ._calibration import Calibration, is_static, read_calibration
from ._hf_pages import _NAMES, PAGE_TOKENS, Book, Chunk, Pages, Plans, ints

__all__ = ["OctavoCache", "attention", "attention_mask", "attention_packed", "for_generate_batch"]

NAME = "octavo"
NAME_PACKED = "octavo_flash"   # generate_batch takes names with "flash" in them
_FORMATS = {
    "i8": (_octavo.KVFormat("i8", "token_head", rotated=True), _octavo.KVFormat("i8", "token_head")),
    "e4m3": (_octavo.KVFormat("e4m3fn", "token_head"),) * 2,
    "e5m2": (_octavo.KVFormat("e5m2"),) * 2,
    "bf16": (_octavo.KVFormat("bf16"),) * 2, "f16": (_octavo.KVFormat("f16"),) * 2, "f32": (_octavo.KVFormat("f32"),) * 2,
}


# ---- masks ------------------------------------------------------------------------------------------------------------

@dataclass
class Visible:
    """What a mask of transformers says: the window (0: none), and which positions hold tokens."""
    window: int
    q_offset: int                  # position of the first query row
    kv_offset: int                 # position of the first key
    real: np.ndarray | None        # bool [batch, keys]; None: all
    ndim = 4                       # generate() makes masks ahead for a static cache, and transformers then asks them what it asks a matrix

    def contiguous(self) -> Visible:
        return self


def _window_of(mask_function) -> int | None:
    """0: causal; W: causal in a window of W; None: anything else."""
    name = getattr(mask_function, "__qualname__", "")
    if name == "causal_mask_function":
        return 0
    if name == "and_masks.<locals>.and_mask":
        parts = mask_function.__closure__[0].cell_contents
        if len(parts) == 2 and parts[0].__qualname__ == "sliding_window_overlay.<locals>.inner_mask" and parts[1].__qualname__ == "causal_mask_function":
            return int(parts[0].__closure__[0].cell_contents)
    return None


def attention_mask(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None, attention_mask=None, **_):
    """The mask function of "octavo": a Visible, never a matrix. NotImplementedError for masks that are not causal (with a window), or of packed sequences."""
    if isinstance(attention_mask, Visible):
        return attention_mask
    window = _window_of(mask_function)
    if window is None:
        raise NotImplementedError(f"octavo: attention is causal, in a window or not; this model asks for the mask {getattr(mask_function, '__qualname__', mask_function)}")
    q_offset, kv_offset = int(q_offset), int(kv_offset)
    live = q_offset + q_length - kv_offset       # a static cache shows its unused end as well
    real = np.ones((batch_size, kv_length), bool)
    real[:, live:] = False
    if attention_mask is not None:
        given = attention_mask[:, kv_offset:kv_offset + kv_length]
        if live < kv_length or not bool(given.all()):
            given = given.cpu().numpy().astype(bool)
            real[:, :given.shape[1]] &= given
    if window and (np.diff(np.pad(real, ((0, 0), (1, 1))).astype(np.int8), axis=1) == 1).sum(axis=1).max() > 1:
        raise NotImplementedError("octavo: the attention mask hides tokens between others; a window counts tokens that are stored, not positions")
    return Visible(window, q_offset, kv_offset, None if real.all() else real)


# ---- the cache --------------------------------------------------------------------------------------------------------

class _Stored(torch.Tensor):
    """Stands for what a layer has stored, in the place of the keys or values that a cache returns. It has a shape, and nothing can be computed from it."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, like, length, layer, fresh):
        shape = (*like.shape[:2], length, like.shape[3])
        self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=like.dtype, device=like.device)
        self.layer, self.fresh = layer, fresh
        return self

    def __repr__(self):
        return f"<{tuple(self.shape)} in an OctavoCache>"

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(f"octavo: an OctavoCache gives no tensors, but the model computed {function} from one; load it with attn_implementation=\"octavo\"")


@dataclass
class _Shared:
    """What all layers of a cache know; not the cache, or only the garbage collector would give its memory back."""
    formats: list                                             # of K and V, by layer
    scales: list | None
    most_tokens: int | None
    steps: list[int]                                          # that each layer has made
    keep: bool = False
    books: dict[int, Book] = field(default_factory=dict)      # by window

    def open(self, window: int, batch: int, device) -> None:
        if window not in self.books:
            self.books[window] = Book(batch, device, window=window, most_tokens=self.most_tokens or 1 << 26, fixed=self.most_tokens is not None, keep=self.keep)

    def retreat(self, step: int) -> None:
        """A layer has failed in its step number `step` (from 0 on): no layer has made it, and no book."""
        for book in self.books.values():
            if book.step == step + 1:
                book.retreat()
        self.steps[:] = [min(made, step) for made in self.steps]


class OctavoLayer(CacheLayerMixin):
    """One layer of an OctavoCache. Tokens are stored when attention runs, which knows which of them are padding."""

    is_croppable = True

    def __init__(self, shared: _Shared, index: int, window: int):
        super().__init__()
        self.shared, self.index, self.window, self.is_sliding = shared, index, window, window > 0
        self.pages = None

    @property
    def step(self) -> int:
        return self.shared.steps[self.index]

    @property
    def book(self) -> Book | None:
        return self.shared.books.get(self.window)

    def lazy_initialization(self, key_states, value_states):
        heads, dim, dim_v = key_states.shape[1], key_states.shape[3], value_states.shape[3]
        k, v = self.shared.formats[self.index]
        spec = _octavo.KVSpec(heads, dim, dim_v=dim_v, page_size=PAGE_TOKENS, k=k, v=v)
        scales = self.shared.scales[self.index] if self.shared.scales is not None else (1.0, 1.0)
        scales = tuple(s if f.scale in ("tensor", "layer", "layer_head", "channel") else None for s, f in zip(scales, (k, v)))
        self.shared.open(self.window, key_states.shape[0], key_states.device)
        if self.pages is None or self.pages.spec != spec or self.pages.device != key_states.device:
            self.pages = Pages(spec, key_states.device, scales)   # else a reset one's: its memory serves again
        if self.book.fixed:
            self.pages.reserve(self.book.n_pages)
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if key_states.shape[0] != len(self.book.sequences):
            _octavo._refuse("OctavoCache", f"holds {len(self.book.sequences)} sequences; this step has {key_states.shape[0]}")
        # Whatever failed in the model between two attentions, which can't be seen from here.
        if any(book.step > self.step + 1 for book in self.shared.books.values()):
            _octavo._refuse("OctavoCache", f"layer {self.index} is steps behind others, since a step failed part-way outside of attention; reset() it")
        length = self.book.length + (key_states.shape[2] if self.step == self.book.step else 0)
        return _Stored(key_states, length, self, key_states), _Stored(value_states, length, self, value_states)

    def chunks(self, n: int, real: np.ndarray | None) -> list[Chunk]:
        """The step's: the first layer of a book to come makes them for all."""
        if self.step == self.book.step:
            most = self.shared.most_tokens
            if most is not None and self.book.length + n > most:   # before any book has changed
                _octavo._refuse("OctavoCache", f"holds {self.book.length} tokens of max_cache_len {most}; {n} more do not fit")
            self.book.advance(n, real)
        self.shared.steps[self.index] += 1
        return self.book.chunks

    def get_mask_sizes(self, query_length):
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self):
        if self.book is None or self.pages is None:
            return 0
        return self.book.length

    def get_max_length(self):
        return self.shared.most_tokens or -1


class OctavoCache(Cache):
    """A key/value cache whose layers keep 8 bits an element, for models with attn_implementation="octavo".

    config: the model's. kv: "i8" (K rotated), "e4m3" (scales of each token and head), "e5m2", "bf16", "f16", "f32", or a pair of KVFormat for K and V.
    scales: for formats with static scales, a (k, v) of numbers or float32 tensors for every layer; real value = byte * scale. calibration: a file of `octavo
    calibrate` or `octavo advise`, or what read_calibration made of it: its scales, and the formats of its layers where it has some, instead of kv. max_cache_len: takes the
    memory of so many tokens a sequence at once, and no more (InvalidArgument past it); None: memory grows with the text. Layers with a sliding window keep the
    window's pages. Source: KVLayer, PageTable, AttentionPlan. Raises InvalidArgument, Unsupported.
    """

    def __init__(self, config, kv="i8", *, scales=None, calibration=None, max_cache_len: int | None = None):
        config = config.get_text_config(decoder=True)
        formats = _FORMATS.get(kv) if isinstance(kv, str) else tuple(_octavo.KVFormat(f) if isinstance(f, str) else f for f in kv)
        if formats is None or len(formats) != 2:
            _octavo._refuse("kv", f"is {kv!r}; must be one of {', '.join(_FORMATS)}, or formats of K and V")
        if "v4" in (f.dtype for f in formats):
            _octavo._refuse("kv", "keeps V in v4, whose pages are no tensors of elements; pools of octavo.KVPool take it")
        types, more = get_layer_types_and_kwargs(config)
        other = set(types) - {"full_attention", "sliding_attention"}
        if other:
            raise NotImplementedError(f"octavo: OctavoCache has layers of full_attention and sliding_attention, not of {', '.join(sorted(other))}")
        if scales is not None and len(scales) != len(types):
            _octavo._refuse("scales", f"are of {len(scales)} layers; the model has {len(types)}")
        by_layer = [formats] * len(types)
        if calibration is not None:
            if scales is not None:
                _octavo._refuse("calibration", "and scales exclude each other")
            file = calibration if isinstance(calibration, Calibration) else read_calibration(calibration)
            if file.n_layers != len(types):
                _octavo._refuse("calibration", f"is of {file.n_layers} layers; the model has {len(types)}")
            file.check_model(config.model_type, file.n_layers)
            by_layer = list(file.formats) if file.formats is not None else by_layer
            if file.formats is None and not any(is_static(form) for form in formats):
                _octavo._refuse("calibration", "has scales for formats with static ones, of which kv has none: they would be left out in silence. Name formats, such as a pair of KVFormat('e4m3fn', 'layer')")
            scales = [tuple(file.scales(layer, side, form) for side, form in enumerate(pair)) for layer, pair in enumerate(by_layer)]
        self.shared = _Shared(by_layer, scales, max_cache_len, [0] * len(types))
        super().__init__(layers=[OctavoLayer(self.shared, i, int(m.get("sliding_window") or 0)) for i, m in enumerate(more)])

    @property
    def books(self) -> dict[int, Book]:
        return self.shared.books

    @property
    def nbytes(self) -> int:
        """Of all layers' pages and scales."""
        return sum(layer.pages.nbytes for layer in self.layers if layer.pages is not None)

    @property
    def batch_size(self) -> int:
        return len(next(iter(self.books.values())).sequences) if self.books else -1

    def reset(self) -> None:
        """As new, for any batch. The memory of max_cache_len stays taken, other memory is given back."""
        self.books.clear()
        self.shared.keep = False
        self.shared.steps[:] = [0] * len(self.layers)
        for layer in self.layers:
            layer.is_initialized = False
            layer.pages = layer.pages if self.shared.most_tokens is not None else None

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove > 0:
            _octavo._refuse("OctavoCache.crop", "takes a negative number: that many tokens less")
        for book in self.books.values():
            if book.window and not book.keep and tokens_to_remove and book.length >= book.window:
                raise RuntimeError("octavo: a window's layers have let go of what would be seen again; call activate_past_recording before")
        for book in self.books.values():
            book.crop(-tokens_to_remove)

    def activate_past_recording(self) -> None:
        if not self.shared.keep and self.shared.most_tokens is not None and any(b.window for b in self.books.values()):
            if any(b.length for b in self.books.values()):
                raise RuntimeError("octavo: a cache of max_cache_len takes the memory for this before its first token; reset() it")
            self.reset()
        self.shared.keep = True
        for book in self.books.values():
            book.keep, book.most_pages = True, None

    def reorder_cache(self, beam_idx) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        for book in self.books.values():
            book.select([i for i in range(len(book.sequences)) for _ in range(repeats)])

    def batch_select_indices(self, indices) -> None:
        for book in self.books.values():
            book.select([int(i) for i in torch.arange(len(book.sequences))[torch.as_tensor(indices).cpu()]])


# ---- attention --------------------------------------------------------------------------------------------------------

def _rows(x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    """[batch, heads, tokens, dim] as [rows, heads, dim]."""
    flat = x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3])
    return flat if rows is None else flat[rows]


def _sequences(key, value, query, visible: Visible, device) -> tuple[Chunk, torch.Tensor, torch.Tensor]:
    """Keys and values that are tensors, as pages in the order of their sequences; the step over them; which query rows take part."""
    batch, _, n_q, _ = query.shape
    n_k = key.shape[2]
    keys = [np.flatnonzero(visible.real[b]) if visible.real is not None else np.arange(n_k) for b in range(batch)]
    first = visible.q_offset - visible.kv_offset
    rows = [np.flatnonzero(visible.real[b, first:first + n_q]) if visible.real is not None else np.arange(n_q) for b in range(batch)]
    every = torch.as_tensor(np.concatenate([b * n_k + k for b, k in enumerate(keys)])).to(device)
    whole = all(len(r) == n_q for r in rows)
    index = None if whole else torch.as_tensor(np.concatenate([b * n_q + r for b, r in enumerate(rows)])).to(device)
    return _packed([len(r) for r in rows], [len(k) for k in keys], index, device), _rows(key, every), _rows(value, every)


def _packed(n_rows: list, n_keys: list, index, device) -> Chunk:
    pages = [-(-n // PAGE_TOKENS) for n in n_keys]
    begin = np.concatenate(([0], np.cumsum(pages))).astype(np.int64)
    table = np.full((len(pages), max(pages + [1])), -1, np.int32)
    for b, n in enumerate(pages):
        table[b, :n] = np.arange(begin[b], begin[b + 1])
    slots = np.concatenate([begin[b] * PAGE_TOKENS + np.arange(n) for b, n in enumerate(n_keys)])
    qo = np.concatenate(([0], np.cumsum(n_rows)))
    return Chunk(index, ints(slots, device), [], max(int(begin[-1]), 1), int(qo[-1]), max(n_keys + [1]), (ints(qo, device), ints(table, device), ints(n_keys, device)))


def _check(module, query, attention_mask, dropout, is_causal) -> None:
    if dropout and module.training:
        raise NotImplementedError("octavo: no gradients and no dropout; train with another attn_implementation")
    if torch.is_grad_enabled() and query.requires_grad:
        raise NotImplementedError("octavo: attention is not differentiable; run the model under torch.no_grad() or torch.inference_mode()")
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    if not causal or isinstance(attention_mask, torch.Tensor):
        raise NotImplementedError("octavo: attention is causal, over two-dimensional attention masks")
    if query.dtype not in _NAMES:
        raise NotImplementedError(f"octavo: attention in float32, float16 or bfloat16, not in {query.dtype}")


def _how(query, scaling, softcap, window, s_aux) -> dict:
    return dict(sm_scale=float(query.shape[3] ** -0.5 if scaling is None else scaling), softcap=float(softcap or 0.0), window=window,
                sink=None if s_aux is None else s_aux.detach().to(torch.float32).contiguous())


def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, softcap=None, sliding_window=None, s_aux=None, is_causal=None, **kwargs):
    """The attention function of "octavo": query [batch, heads, tokens, dim]; returns ([batch, tokens, heads, dim_v], None).

    key, value: an OctavoCache's, or tensors (of another cache, or of none), which go through pages of their own type.
    """
    _check(module, query, attention_mask, dropout, is_causal)
    batch, heads, n, _ = query.shape
    visible = attention_mask if attention_mask is not None else Visible(int(sliding_window or 0), key.shape[2] - n, 0, None)
    window = visible.window or int(sliding_window or 0)
    how = _how(query, scaling, softcap, window, s_aux)
    out = query.new_zeros((batch * n, heads, value.shape[3]))   # rows of padding stay 0

    if isinstance(key, _Stored):
        layer, new_k, new_v = key.layer, key.fresh, value.fresh
        if window != layer.window:
            _octavo._refuse("OctavoCache", f"layer {layer.index} keeps a window of {layer.window} tokens, its attention has one of {window} (0: none)")
        book, real = layer.book, visible.real
        if layer.step == book.step and (real is not None or book.real is not None):
            before = book.real if book.real is not None else np.ones((batch, book.length), bool)
            if real is None and not before.all() or real is not None and not np.array_equal(real[:, :book.length], before):
                raise NotImplementedError("octavo: the attention mask of tokens that are stored has changed")
        if real is not None:
            real = real[:, -n:]
            real = None if real.all() and book.real is None else real
        step = layer.step
        try:
            for chunk in layer.chunks(n, real):
                layer.pages.reserve(chunk.n_pages, book.most_pages)
                layer.pages.copy(chunk.copies)
                _octavo.kv_write(layer.pages.layer, _rows(new_k, chunk.rows), _rows(new_v, chunk.rows), chunk.slots)
                _run(book.plans, chunk, layer.pages, query, out, how)
        except BaseException:
            layer.shared.retreat(step)
            raise
    else:
        chunk, k, v = _sequences(key, value, query, visible, query.device)
        _over(chunk, k, v, query, out, how)
    return out.view(batch, n, heads, -1), None


def attention_packed(module, query, key, value, attention_mask=None, scaling=None, dropout=0.0, softcap=None, sliding_window=None, s_aux=None, is_causal=None, cache=None, **kwargs):
    """The attention function of "octavo_flash", which generate_batch calls: the rows of all requests in one, query [1, heads, rows, dim], and its PagedAttentionCache,
    which keeps 16 bits (or what the model computes in) and hands out copies."""
    if cache is None:
        raise NotImplementedError(f"octavo: {NAME_PACKED} is for generate_batch; elsewhere it is attn_implementation={NAME!r}")
    _check(module, query, attention_mask, dropout, is_causal)
    if kwargs.get("block_table") is not None:
        raise NotImplementedError("octavo: generate_batch without block tables")
    key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=kwargs)
    n_rows, n_keys = (np.diff(kwargs[name].cpu().numpy()).tolist() for name in ("cu_seq_lens_q", "cu_seq_lens_k"))
    _, heads, rows, _ = query.shape
    out = query.new_zeros((rows, heads, value.shape[3]))   # rows that fill up a batch stay 0
    index = None if sum(n_rows) == rows else torch.arange(sum(n_rows), device=query.device)
    chunk = _packed(n_rows, n_keys, index, query.device)
    _over(chunk, _rows(key, None)[:sum(n_keys)], _rows(value, None)[:sum(n_keys)], query, out, _how(query, scaling, softcap, int(sliding_window or 0), s_aux))
    return out[None], None


def for_generate_batch(model):
    """Lets a model's generate_batch attend with octavo, and returns the model. Not by set_attn_implementation: for names with "flash" that loads FlashAttention."""
    model.config._attn_implementation = NAME_PACKED
    return model


def _over(chunk: Chunk, k, v, query, out, how) -> None:
    """Keys and values that are tensors go through pages of their own type."""
    form = _NAMES[k.dtype]
    pages = Pages(_octavo.KVSpec(k.shape[1], k.shape[2], dim_v=v.shape[2], page_size=PAGE_TOKENS, k=form, v=form), query.device)
    pages.reserve(chunk.n_pages)
    _octavo.kv_write(pages.layer, k, v, chunk.slots)
    _run(Plans(), chunk, pages, query, out, how)


def _run(plans: Plans, chunk: Chunk, pages: Pages, query, out, how) -> None:
    if not chunk.n_rows:
        return
    q = _rows(query, chunk.rows)
    if chunk.rows is None:
        plans.run(chunk, pages, q, out, **how)
    else:
        part = out.new_empty((chunk.n_rows, *out.shape[1:]))
        plans.run(chunk, pages, q, part, **how)
        out[chunk.rows] = part


AttentionInterface.register(NAME, attention)
AttentionInterface.register(NAME_PACKED, attention_packed)
AttentionMaskInterface.register(NAME, attention_mask)
