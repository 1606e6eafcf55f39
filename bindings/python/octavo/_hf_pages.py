"""Pages for octavo.transformers: who has which page (Book), the memory of one layer (Pages), and one step of a batch over both.

A Book is shared by all layers that keep the same tokens, full or of one window: it hands out pages once a step, and its plan is updated once a step. A layer's
memory is torch's, and grows page by page of the highest that the book has handed out. Not thread-safe: a model's forward is one thread.
"""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from . import _octavo
from .torch import _context

PAGE_TOKENS = 16
MOST_PAGES = 1 << 18       # of a book that is not fixed: 4 million tokens
MOST_SEQUENCES = 4096      # of a book: batch, beams, and both again while beams change places
WINDOW_CHUNK_TOKENS = 512  # a prompt goes through a window's pages in parts of this, or of the window if that is longer: they hold the two together

_STORE = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i8": torch.int8, "e4m3fn": torch.uint8, "e4m3fnuz": torch.uint8, "e5m2": torch.uint8}
_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def ints(numbers, device) -> torch.Tensor:
    return torch.as_tensor(np.asarray(numbers, np.int32)).to(device)


def up(n: int) -> int:
    """The next power of two: a GPU's plan takes its memory once, for the largest step."""
    return 1 << max(int(n) - 1, 0).bit_length()


@dataclass
class Chunk:
    """What one write and one run take. rows: which of the step's flattened [batch * tokens] rows these are, in order; None: all of them."""
    rows: torch.Tensor | None
    slots: torch.Tensor
    copies: list
    n_pages: int           # that the pool must have by now
    n_rows: int
    n_keys: int            # of the longest sequence
    batch: tuple           # qo_indptr, block_table, seq_lens


@dataclass
class Pages:
    """One layer's memory: K, V and their dynamic scales, [pages, PAGE_TOKENS, heads, ...]."""
    spec: _octavo.KVSpec
    device: torch.device
    scales: tuple = (None, None)
    layer: _octavo.KVLayer | None = None
    parts: dict = field(default_factory=dict)

    def _shapes(self, n: int) -> dict:
        shapes = {}
        for side, form, dim in (("k", self.spec.k, self.spec.dim), ("v", self.spec.v, self.spec.dim_v)):
            shapes[side] = (n, PAGE_TOKENS, self.spec.heads, dim), _STORE[form.dtype]
            if form.scale == "token_head":
                shapes[side + "_token_scale"] = (n, PAGE_TOKENS, self.spec.heads), torch.float16
        return shapes

    def _bind(self) -> None:
        given = {f"{side}_scale": s for side, s in zip("kv", self.scales) if s is not None}
        if self.device.type != "cpu":
            given = {name: torch.as_tensor(s, dtype=torch.float32, device=self.device).reshape(-1) for name, s in given.items()}
        self.layer = _octavo.KVLayer(self.spec, **self.parts, **given, context=_context(self.device))

    def reserve(self, n: int, most: int | None = None) -> None:
        """At least n pages; a quarter more than there were where it grows (never more than most). Parts grow one after the other: the largest of them is all
        that is held twice. Without the memory for one the layer stays as it was."""
        have = self.parts["k"].shape[0] if self.parts else 0
        if n > have:
            n = n if not have else max(n, have + have // 4 if most is None else min(have + have // 4, most))
            self.layer = None   # it holds all parts
            try:
                for name, (shape, dtype) in self._shapes(n).items():
                    part = torch.empty(shape, dtype=dtype, device=self.device)
                    if have:
                        part[:have] = self.parts[name]
                    self.parts[name] = part
            except BaseException:
                self.parts = {name: part[:have] for name, part in self.parts.items()} if have else {}
                if have:
                    self._bind()
                raise
        if self.layer is None:
            self._bind()

    def copy(self, copies: list) -> None:
        for source, target in copies:
            for part in self.parts.values():
                part[target] = part[source]

    @property
    def nbytes(self) -> int:
        return sum(p.untyped_storage().nbytes() for p in self.parts.values())


class Plans:
    """Plans by what they are made from. Each remembers the chunk that it was updated for."""

    def __init__(self):
        self.made: dict = {}

    def run(self, chunk: Chunk, pages: Pages, q: torch.Tensor, out: torch.Tensor, *, sm_scale: float, softcap: float, window: int, sink: torch.Tensor | None) -> None:
        gpu = q.device.type != "cpu"
        key = (q.shape[1], pages.spec, q.dtype, sm_scale, softcap, window, sink is not None)
        plan, limits, current = self.made.get(key, (None, (0, 0, 0), None))
        needs = (chunk.batch[2].shape[0], chunk.n_rows, chunk.n_keys)
        if plan is None or gpu and any(n > limit for n, limit in zip(needs, limits)):
            limits = tuple(max(up(n), limit) for n, limit in zip(needs, limits)) if gpu else (0, 0, 0)
            most = dict(zip(("max_sequences", "max_rows", "max_keys"), limits)) if gpu else {}
            plan, current = _octavo.AttentionPlan(q.shape[1], pages.spec, q_dtype=_NAMES[q.dtype], sm_scale=sm_scale, softcap=softcap, window=window,
                                                  sink=sink is not None, context=_context(q.device), **most), None
        if current is not chunk:
            plan.update(*chunk.batch, n_pages=chunk.n_pages)
            self.made[key] = (plan, limits, chunk)
        plan.run(q, pages.layer, out=out, sink=sink)


class Book:
    """The sequences of a batch and their pages. window: 0, or the keys that a query sees, itself included. most_tokens: of a sequence."""

    def __init__(self, n_sequences: int, device: torch.device, *, window: int, most_tokens: int, fixed: bool, keep: bool = False):
        self.window, self.device, self.fixed, self.plans = window, device, fixed, Plans()
        self.keep = keep         # keeps what the window has let go, until a crop
        self.chunk_tokens = max(window, WINDOW_CHUNK_TOKENS) if window else 0
        kept = min(most_tokens, window + self.chunk_tokens) if window and not keep else most_tokens
        self.pages_each = -(-kept // PAGE_TOKENS) + (1 if window else 0)
        # Not fixed, the bound is one of numbers only: memory comes with the pages that are handed out.
        n_pages = n_sequences * self.pages_each if fixed else MOST_PAGES
        self.table = _octavo.PageTable(PAGE_TOKENS, n_pages, MOST_SEQUENCES, window=window)
        self.sequences, self.unused = list(range(n_sequences)), list(range(MOST_SEQUENCES - 1, n_sequences - 1, -1))
        self.n_pages = n_sequences * self.pages_each if fixed else 0
        self.most_pages = n_sequences * self.pages_each if window and not keep else None
        self.length = 0          # positions, those that the attention mask hides included
        self.real = None         # bool [batch, length] once one is hidden
        self.step, self.chunks = 0, []
        self.before = None       # the step under way: what it found
        self.copies = []         # of the step under way
        self.owed = []           # copies of a step taken back, whose targets the tables keep: the next step makes them first
        self.lost = False        # a step could not be taken back: its window has let go of what would be seen again

    def advance(self, n: int, real: np.ndarray | None) -> list:
        """Room for n further positions, of which bool real[batch, n] are tokens (None: all). Returns the step's chunks. All or nothing."""
        if self.lost:
            _octavo._refuse("OctavoCache", "has lost tokens in a step that failed part-way; reset() it")
        batch = len(self.sequences)
        if real is not None or self.real is not None:
            before = self.real if self.real is not None else np.ones((batch, self.length), bool)
            real = real if real is not None else np.ones((batch, n), bool)
            after = np.concatenate((before, real), axis=1)
        else:
            after = None
        places = [np.flatnonzero(real[b]) if real is not None else np.arange(n) for b in range(batch)]
        longest = max((len(p) for p in places), default=0)
        part = self.chunk_tokens if self.chunk_tokens and not self.keep else max(longest, 1)
        self.before = [self.table.length(s) for s in self.sequences], self.length, self.real
        self.copies = list(self.owed)
        try:
            chunks = [self._chunk([p[begin:begin + part] for p in places], n, whole=real is None and longest <= part) for begin in range(0, longest, part)]
        except BaseException:
            self._restore()
            raise
        if chunks:
            chunks[0].copies[:0], self.owed = self.owed, []
        self.real, self.length = after, self.length + n
        self.step, self.chunks = self.step + 1, chunks
        return chunks

    def retreat(self) -> None:
        """Takes the last step back, which has failed in some layer: no other call has come since."""
        self._restore()
        self.step, self.chunks = self.step - 1, []

    def _restore(self) -> None:
        lengths, self.length, self.real = self.before
        # A page that was copied on write stays its sequence's, and some layer may not have copied it. No page's bytes change before the next step's own copies.
        self.owed = self.copies
        self.n_pages = max([self.n_pages] + [target + 1 for _, target in self.owed])
        for s, n in zip(self.sequences, lengths):
            try:
                self.table.truncate(s, n)
            except _octavo.InvalidArgument:   # later chunks have moved the window on
                self.lost = True

    def _chunk(self, places: list, n: int, whole: bool) -> Chunk:
        slots, qo = [], [0]
        known = len(self.copies)
        for s, p in zip(self.sequences, places):
            if self.window and not self.keep:
                self.table.slide(s)
            mine, more = self.table.append(s, len(p))
            slots.append(mine)
            self.copies += more
            qo.append(qo[-1] + len(p))
        block_table, seq_lens = self.table.batch(self.sequences)
        self.n_pages = max(self.n_pages, int(block_table.max(initial=-1)) + 1)
        rows = None if whole else torch.as_tensor(np.concatenate([b * n + p for b, p in enumerate(places)])).to(self.device)
        return Chunk(rows, ints(np.concatenate(slots), self.device), self.copies[known:], self.n_pages, qo[-1], int(seq_lens.max(initial=1)),
                     (ints(qo, self.device), ints(block_table, self.device), ints(seq_lens, self.device)))

    def select(self, indices: list) -> None:
        """The batch becomes its own members indices[i]: pages are shared, and copied when one of the sharers writes on."""
        if indices == list(range(len(self.sequences))):
            return
        if self.fixed and len(indices) > len(self.sequences):
            _octavo._refuse("OctavoCache", f"has taken the memory of {len(self.sequences)} sequences; there is none for {len(indices)}")
        if len(indices) > len(self.unused):
            _octavo._refuse("OctavoCache", f"holds {len(self.sequences)} sequences; {len(indices)} more are beyond {MOST_SEQUENCES}")
        fresh = [self.unused.pop() for _ in indices]
        for i, s in zip(indices, fresh):
            length = self.table.length(self.sequences[i])
            if length:
                self.table.share(self.sequences[i], s, length)
        for s in self.sequences:
            self.table.free(s)
        self.unused += self.sequences
        self.sequences, self.real = fresh, None if self.real is None else self.real[indices]

    def crop(self, n: int) -> None:
        """Takes the last n positions away."""
        n = min(n, self.length)
        for b, s in enumerate(self.sequences):
            cut = n if self.real is None else int(self.real[b, self.length - n:].sum())
            self.table.truncate(s, self.table.length(s) - cut)
            if self.window:
                self.table.slide(s)
        self.length -= n
        self.real = None if self.real is None else self.real[:, :self.length]
