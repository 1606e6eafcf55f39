"""octavo.torch: tensors in and out without copies, operators and their fakes, torch.compile(fullgraph=True), CUDA graphs where there is a GPU."""
import os
import re
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "python"))
import octavo          # noqa: E402
import octavo.torch    # noqa: E402
import oracle          # noqa: E402

FORMATS = {"bf16": "bf16", "e4m3": octavo.KVFormat("e4m3fn", "layer"), "e5m2": "e5m2",
           "i8 rotated": octavo.KVFormat("i8", "token_head", rotated=True)}
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
HEADS_Q, HEADS, DIM, PAGES = 8, 2, 64, 12


def int32(x, device):
    return torch.tensor(x, dtype=torch.int32, device=device)


class Step:
    """Two sequences of 100 and 33 keys, of which the last `rows` are new."""

    def __init__(self, form, device, rows=(3, 3), q_dtype="bf16", **options):
        context = octavo.Context("cuda:0") if device == "cuda" else None
        limits = dict(max_sequences=2, max_rows=64, max_keys=192) if device == "cuda" else {}
        self.device, self.rows, self.lens = device, rows, [100, 33]
        self.spec = octavo.KVSpec(HEADS, DIM, k=form)
        self.pool = octavo.KVPool(self.spec, 1, PAGES, context=context)
        if self.spec.k.scale == "layer":
            self.pool.set_scale(0, k=0.03, v=0.02)
        self.kv = octavo.torch.KV(self.pool.layer(0))
        self.plan = octavo.torch.Plan(HEADS_Q, self.spec, q_dtype=q_dtype, context=context, **limits, **options)
        g = torch.Generator().manual_seed(7)
        self.table = [[0, 2, 4, 6, 8, 10, 1], [3, 5, 7, 9, 11, 0, 0]]
        self.k, self.v = (torch.randn(133, HEADS, DIM, generator=g).to(torch.bfloat16).to(device) for _ in "kv")
        slots = [self.table[0][i // 16] * 16 + i % 16 for i in range(100)] + [self.table[1][i // 16] * 16 + i % 16 for i in range(33)]
        self.slots = int32(slots, device)
        self.q = torch.randn(sum(rows), HEADS_Q, DIM, generator=g).to(getattr(torch, {"bf16": "bfloat16", "f32": "float32"}[q_dtype])).to(device)
        self.qo, self.bt, self.sl = int32([0, rows[0], sum(rows)], device), int32(self.table, device), int32(self.lens, device)
        self.update()

    def update(self):
        self.plan.update(self.qo, self.bt, self.sl, n_pages=PAGES)

    def __call__(self, q, k, v, slots):
        octavo.torch.kv_write(self.kv, k, v, slots)
        return octavo.torch.attention(self.plan, q * 0.5, self.kv)

    def inputs(self):
        return self.q, self.k, self.v, self.slots

    def judge(self, out, lse, window=0):
        """Against float64 on the bytes that lie in the pool now."""
        scales = {"k": 0.03, "v": 0.02} if self.spec.k.scale == "layer" else {}

        class Host:   # the layer as NumPy has it
            spec = self.spec

        for name in ("k", "v", "k_token_scale", "v_token_scale"):
            a = getattr(self.kv.layer, name)
            setattr(Host, name, None if a is None else torch.from_dlpack(a.bits() if a.dtype != "f16" else a).cpu().view(
                torch.int16 if a.dtype == "bf16" else torch.float16 if a.dtype == "f16" else torch.uint8).numpy())
        k, v = (oracle.stored(Host, w, scales.get(w)) for w in "kv")
        q = (self.q * 0.5).double().cpu().numpy()
        row = 0
        for s, n in enumerate(self.rows):
            want, want_lse = oracle.attention(q[row:row + n], oracle.sequence_keys(k, self.table[s], self.lens[s]), oracle.sequence_keys(v, self.table[s], self.lens[s]), sm_scale=0.125, window=window)
            oracle.judge(out[row:row + n].double().cpu().numpy(), want, np.abs(v).max())
            np.testing.assert_allclose(lse[row:row + n].cpu().numpy(), want_lse, atol=1e-3)
            row += n


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMATS)
def test_eager_and_compiled_agree_with_float64(form, device):
    step = Step(FORMATS[form], device)
    eager = step(*step.inputs())
    step.judge(*eager)
    if device == "cuda":
        step.plan.plan.status(torch.cuda.current_stream())
    k_pages, v_pages = (torch.from_dlpack(a.bits()) for a in (step.kv.layer.k, step.kv.layer.v))
    before = k_pages.cpu().clone()
    k_pages.zero_()
    v_pages.zero_()
    torch._dynamo.reset()
    compiled = torch.compile(step.__call__, fullgraph=True, backend=os.environ.get("OCTAVO_TEST_BACKEND", "aot_eager"))
    got = compiled(*step.inputs())   # the read must stay behind the write, or it sees zeros
    for a, b in zip(got, eager):
        assert torch.equal(a, b)
    assert torch.equal(k_pages.cpu(), before)


@pytest.mark.parametrize("device", DEVICES)
def test_one_compiled_function_serves_two_plans(device):
    """As a model's layers do: for the second the numbers of plan and layer are symbols of the graph."""
    steps = Step("bf16", device), Step(FORMATS["e4m3"], device, window=20), Step("bf16", device, rows=(1, 1))

    def layer(step, q, k, v, slots):
        return step(q, k, v, slots)

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=os.environ.get("OCTAVO_TEST_BACKEND", "aot_eager"))
    for step in steps + steps[:1]:
        step.judge(*step(*step.inputs()), window=20 if step is steps[1] else 0)
        for a, b in zip(compiled(step, *step.inputs()), step(*step.inputs())):
            assert torch.equal(a, b)

    def both(q, k, v, slots):
        return steps[0](q, k, v, slots), steps[1](q, k, v, slots)

    torch._dynamo.reset()
    for got, step in zip(torch.compile(both, fullgraph=True, backend="aot_eager")(*steps[0].inputs()), steps):
        for a, b in zip(got, step(*steps[0].inputs())):
            assert torch.equal(a, b)


@pytest.mark.parametrize("device", DEVICES)
def test_operators_hold_to_their_schema_and_fakes(device):
    step = Step("bf16", device)
    step(*step.inputs())
    number = step.plan.number, step.kv.number
    torch.library.opcheck(torch.ops.octavo.kv_write, (step.kv.order, step.k, step.v, step.slots, number[1]))
    torch.library.opcheck(torch.ops.octavo.attention, (step.q, step.kv.order, *number, None, None, None, None))
    torch.library.opcheck(torch.ops.octavo.merge_states, (torch.randn(3, 2, 4, 16, device=device), torch.randn(3, 2, 4, device=device)))


def test_pages_are_shared_and_8_bit_types_cross():
    step = Step(FORMATS["e4m3"], "cpu")
    bits, named = torch.from_dlpack(step.kv.layer.k.bits()), torch.from_dlpack(step.kv.layer.k)
    assert torch.from_dlpack(step.kv.layer.k.bits(), device="cpu").data_ptr() == bits.data_ptr()
    with pytest.raises(BufferError):
        torch.from_dlpack(step.kv.layer.k.bits(), copy=True)
    assert bits.dtype == torch.uint8 and named.dtype == torch.float8_e4m3fn and named.data_ptr() == bits.data_ptr()
    k, v = (torch.zeros(PAGES, 16, HEADS, DIM, dtype=torch.float8_e4m3fn) for _ in "kv")
    mine = octavo.torch.KV(octavo.KVLayer(step.spec, k, v, k_scale=0.03, v_scale=torch.tensor([0.02])))
    octavo.torch.kv_write(mine, step.k, step.v, step.slots)
    octavo.torch.kv_write(step.kv, step.k, step.v, step.slots)
    assert torch.equal(k.view(torch.uint8), bits) and torch.equal(v.view(torch.uint8), torch.from_dlpack(step.kv.layer.v.bits()))
    # What octavo makes is like q: a tensor, of the plan's type.
    plan = octavo.AttentionPlan(HEADS_Q, step.spec, q_dtype=torch.bfloat16, out_dtype=torch.float32)
    plan.update(step.qo, step.bt, step.sl, n_pages=PAGES)
    out = plan.run(step.q, mine.layer)
    assert isinstance(out, torch.Tensor) and out.dtype == torch.float32
    with pytest.raises(octavo.InvalidArgument, match="int64"):
        plan.update(step.qo.long(), step.bt, step.sl, n_pages=PAGES)


def test_the_block_of_the_page_runs():
    with open(os.path.join(os.path.dirname(__file__), "..", "..", "doc", "PYTHON.md"), encoding="utf-8") as file:
        block = re.search(r"^```py\n(.*?)^```$", file.read(), re.M | re.S).group(1)
    step = Step("bf16", "cpu")
    names = dict(octavo=octavo, torch=torch, pool=step.pool, heads_q=HEADS_Q, spec=step.spec, qo_indptr=step.qo, block_table=step.bt, seq_lens=step.sl)
    exec(block.replace("@torch.compile(fullgraph=True)", "@torch.compile(fullgraph=True, backend='aot_eager')"), names)
    step.judge(names["layer"](step.q * 0.5, step.k, step.v, step.slots), octavo.torch.attention(names["plan"], step.q * 0.5, names["kv"])[1])


def test_a_dead_plan_is_an_error_with_words():
    step = Step("bf16", "cpu")
    number = step.plan.number
    del step.plan
    with pytest.raises(octavo.InvalidArgument, match="no Plan has the number") as e:
        torch.ops.octavo.attention(step.q, step.kv.order, number, step.kv.number, None, None, None, None)
    assert e.value.where == "octavo.torch" and e.value.status == 1


@pytest.mark.skipif("cuda" not in DEVICES, reason="no CUDA GPU")
def test_a_gpu_is_told_from_the_cpu_with_words():
    step = Step("bf16", "cuda")

    class Other:   # a package that octavo makes no arrays of
        def __dlpack__(self, **how):
            return step.q.__dlpack__(**how)

        def __dlpack_device__(self):
            return step.q.__dlpack_device__()

    plan, layer = step.plan.plan, step.kv.layer
    with pytest.raises(octavo.InvalidArgument, match="out: octavo makes arrays of NumPy and torch only; give out"):
        plan.run(Other(), layer)
    out = torch.empty_like(step.q)
    assert plan.run(Other(), layer, out=out) is out
    with pytest.raises(octavo.InvalidArgument, match="out: octavo makes arrays of NumPy and torch only; give out"):
        plan.run(Other(), layer, out=out, return_lse=True)
    here = octavo.Rope(64, factors=np.ones(32, np.float32))
    with pytest.raises(octavo.InvalidArgument, match="rope's factors lie on cpu; kv is on cuda:0"):
        octavo.kv_write(layer, step.k, step.v, step.slots, rope=here, positions=torch.zeros_like(step.slots))


@pytest.mark.skipif("cuda" not in DEVICES, reason="no CUDA GPU")
@pytest.mark.parametrize("form", FORMATS)
def test_a_captured_step_follows_new_lengths(form):
    """I1: update, write and run in one graph; a replay plans anew from what the metadata says then."""
    step = Step(FORMATS[form], "cuda", rows=(1, 1))
    step.sl.copy_(int32([1, 1], "cuda"))
    static = [x.clone() for x in step.inputs()]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            step.update()
            out, lse = step(*static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.update()
        out, lse = step(*static)
    step.sl.copy_(int32(step.lens, "cuda"))
    graph.replay()
    torch.cuda.synchronize()
    step.judge(out, lse)


@pytest.mark.skipif("cuda" not in DEVICES, reason="no CUDA GPU")
def test_work_goes_to_the_current_stream():
    step = Step("bf16", "cuda")
    slow, side = torch.randn(4096, 4096, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        x = slow
        for _ in range(30):
            x = x @ slow * 1e-2
        q = step.q + 0 * x[0, 0].to(step.q.dtype).nan_to_num(0, 0, 0)   # q is there only after the products
        octavo.torch.kv_write(step.kv, step.k, step.v, step.slots)
        step.update()
        out, lse = octavo.torch.attention(step.plan, q * 0.5, step.kv)
    torch.cuda.synchronize()
    step.judge(out, lse)
