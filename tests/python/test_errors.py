"""What is refused, with which exception and which words: shapes, types, strides, devices, metadata. Nothing is written by a call that fails."""
import numpy as np
import pytest

import octavo

F32 = np.float32


@pytest.fixture
def step():
    class Step:
        spec = octavo.KVSpec(2, 32, k="f32")
        pool = octavo.KVPool(spec, 1, 4)
        layer = pool.layer(0)
        plan = octavo.AttentionPlan(4, spec, q_dtype="f32")
        qo, table, lens = np.array([0, 3], np.int32), np.array([[0, 1]], np.int32), np.array([20], np.int32)
        q = np.ones((3, 4, 32), F32)

        def update(self):
            self.plan.update(self.qo, self.table, self.lens, n_pages=4)
            return self.plan
    return Step()


def test_classes_carry_status_name_text_and_where():
    with pytest.raises(octavo.InvalidArgument) as e:
        octavo.KVSpec(2, 33)
    assert isinstance(e.value, octavo.OctavoError) and isinstance(e.value, ValueError)
    assert (e.value.status, e.value.name, e.value.where) == (1, "invalid_argument", "oct_kv_spec_check")
    assert "33" in e.value.text and e.value.text in str(e.value)
    assert issubclass(octavo.Unsupported, NotImplementedError) and issubclass(octavo.OutOfMemory, MemoryError) and not issubclass(octavo.OutOfPages, ValueError)
    table = octavo.PageTable(4, 2, 1)
    with pytest.raises(octavo.OutOfPages) as e:
        table.append(0, 9)
    assert e.value.status == 4 and table.stats()["used"] == 0
    with pytest.raises(octavo.OutOfMemory):
        octavo.KVPool(octavo.KVSpec(1024, 512, k="f32", page_size=1), 1, (1 << 31) - 1)


@pytest.mark.parametrize("change, words", [
    (dict(q=np.ones((3, 4, 32), np.float64)), "float64"),
    (dict(q=np.ones((3, 4, 31), F32)), r"\[3, 4, 32\]"),
    (dict(q=np.ones((2, 4, 32), F32)), r"\[3, 4, 32\]"),
    (dict(q=np.ones((12, 32), F32)), "shape"),
    (dict(q=np.ones((3, 4, 64), F32)[..., ::2]), "contiguous"),
    (dict(q=np.ones((3, 4, 32), F32)[::-1]), "stride"),
    (dict(out=np.ones((3, 4, 32), np.float16)), "out: is float16"),
    (dict(out=np.ones((3, 2, 32), F32)), "out"),
    (dict(out=np.broadcast_to(np.ones(32, F32), (3, 4, 32))), "read-only"),
    (dict(lse=np.ones((4, 3), F32)), "lse"),
    (dict(sink=np.ones(4, F32)), "sink"),
    (dict(mask=np.ones((3, 1), np.uint32)), "mask"),
    (dict(q_scale=2.0), "q_scale"),
    (dict(stream=7), "CPU"),
])
def test_runs_that_are_refused(step, change, words):
    out = np.full((3, 4, 32), 9, F32)
    args = dict(q=step.q, kv=step.layer, out=out) | change
    with pytest.raises(octavo.InvalidArgument, match=words):
        step.update().run(**args)
    assert (out == 9).all()


def test_overlapping_outputs_are_refused(step):
    out = np.lib.stride_tricks.as_strided(np.ones(4 * 32, F32), (3, 4, 32), (0, 128, 4))
    with pytest.raises(octavo.InvalidArgument):
        step.update().run(step.q, step.layer, out=out)


def test_no_arrays_and_no_layers_are_type_errors(step):
    plan = step.update()
    for q in ([1.0], 3, "q"):
        with pytest.raises(TypeError, match="q: must be an array"):
            plan.run(q, step.layer)
    with pytest.raises(TypeError):
        plan.run(step.q, step.pool)
    with pytest.raises(TypeError):
        plan.run(None, step.layer)
    with pytest.raises(TypeError, match="elements of format"):
        plan.run(np.ones((3, 4, 32), np.complex64), step.layer)
    with pytest.raises(TypeError):
        octavo.explain(3)


def test_layers_of_another_spec_are_refused(step):
    other = octavo.KVPool(octavo.KVSpec(2, 32, k="f16"), 1, 4).layer(0)
    with pytest.raises(octavo.InvalidArgument, match="spec"):
        step.update().run(step.q, other)
    small = octavo.KVPool(step.spec, 1, 1).layer(0)   # fewer pages than the batch uses
    with pytest.raises(octavo.InvalidArgument):
        step.update().run(step.q, small)


@pytest.mark.parametrize("change, words", [
    (dict(qo_indptr=np.array([0, 3])), "int64"),
    (dict(qo_indptr=np.array([], np.int32)), "empty"),
    (dict(qo_indptr=np.array([3, 0], np.int32)), "qo_indptr"),
    (dict(block_table=np.array([[0, 9]], np.int32)), "9"),
    (dict(block_table=np.array([0, 1], np.int32)), "block_table"),
    (dict(block_table=np.zeros((1, 4), np.int32)[:, ::2]), "contiguous"),
    (dict(block_table=np.zeros((2, 4), np.int32)), "block_table"),
    (dict(seq_lens=np.array([99], np.int32)), "99"),
    (dict(seq_lens=np.array([-1], np.int32)), "-1"),
    (dict(seq_lens=np.array([1, 2], np.int32)), "seq_lens"),
    (dict(seq_lens=None), "block_table and seq_lens"),
    (dict(kv_indptr=np.array([0, 2], np.int32)), "block_table and seq_lens"),
])
def test_batches_that_are_refused(step, change, words):
    assert step.update().info["rows"] == 3
    args = dict(qo_indptr=step.qo, block_table=step.table, seq_lens=step.lens, n_pages=4) | change
    with pytest.raises(octavo.InvalidArgument, match=words):
        step.plan.update(**args)
    assert step.plan.info["rows"] == 0   # whoever refused, Python's side or C's
    with pytest.raises(octavo.InvalidArgument, match=r"\[0, 4, 32\]"):
        step.plan.run(step.q, step.layer)


def test_batches_that_are_no_arrays_empty_the_plan_too(step):
    for change in (dict(qo_indptr=[0, 3]), dict(seq_lens=3)):
        assert step.update().info["rows"] == 3
        with pytest.raises(TypeError):
            step.plan.update(**dict(qo_indptr=step.qo, block_table=step.table, seq_lens=step.lens, n_pages=4) | change)
        assert step.plan.info["rows"] == 0


@pytest.mark.parametrize("indptr, indices, last, words", [
    ([0, 3], [0, 1], [4], "kv_indices holds 2"),
    ([0, 2], [0, 1], [17], "17"),
    ([0, 2], [0, 1], [0], "0"),
    ([0, 2], [0, 5], [4], "5"),
    ([0, -1], [0, 1], [4], "kv_indptr"),
])
def test_compressed_batches_that_are_refused(step, indptr, indices, last, words):
    a, b, c = (np.array(x, np.int32) for x in (indptr, indices, last))
    with pytest.raises(octavo.InvalidArgument, match=words):
        step.plan.update(step.qo, kv_indptr=a, kv_indices=b, kv_last_page_len=c, n_pages=4)


@pytest.mark.parametrize("change, words", [
    (dict(k=np.ones((2, 2, 32), np.float64)), "float32, float16 or bfloat16"),
    (dict(k=np.ones((2, 2, 32), np.float16)), "one type"),
    (dict(k=np.ones((2, 3, 32), F32)), "shape"),
    (dict(k=np.ones((1, 2, 32), F32)), "each slot needs a row"),
    (dict(v=np.ones((2, 2, 64), F32)[..., ::2]), "contiguous"),
    (dict(slots=np.array([0, 1])), "int64"),
    (dict(slots=np.array([0, 64], np.int32)), "64"),
    (dict(slots=np.arange(4, dtype=np.int32)[::2]), "contiguous"),
    (dict(positions=np.array([0, 1], np.int32)), "go together"),
    (dict(slots_window=np.array([0, 1], np.int32)), "without kv_window"),
    (dict(rope=octavo.Rope(7), positions=np.array([0, 1], np.int32)), "n_dims"),
    (dict(refused=np.zeros(1, np.uint32)), "refused"),
])
def test_writes_that_are_refused(step, change, words):
    args = dict(kv=step.layer, k=np.ones((2, 2, 32), F32), v=np.ones((2, 2, 32), F32), slots=np.array([0, 1], np.int32)) | change
    before = np.asarray(step.layer.k).tobytes()
    with pytest.raises(octavo.InvalidArgument, match=words):
        octavo.kv_write(**args)
    assert np.asarray(step.layer.k).tobytes() == before


def test_layers_by_hand_that_are_refused():
    spec = octavo.KVSpec(2, 32, k=octavo.KVFormat("e4m3fn", "layer"))
    good = np.zeros((4, 16, 2, 32), np.uint8)
    frozen = good.copy()
    frozen.flags.writeable = False
    for k, more, words in ((good.view(np.int8), {}, "int8"), (good[:, :8], {}, "shape"), (frozen, {}, "read-only"), (good, dict(k_scale=None), "takes one"),
                           (good, dict(k_scale=np.ones(2, F32)), "1 numbers"), (good, dict(k_scale=np.ones(1)), "float64"),
                           (good, dict(k_token_scale=np.ones((4, 16, 2), F32)), "takes none")):
        with pytest.raises(octavo.InvalidArgument, match=words):
            octavo.KVLayer(spec, k, good, **(dict(k_scale=1.0, v_scale=1.0) | more))
    with pytest.raises(octavo.InvalidArgument):   # the number is looked at when it is used
        layer = octavo.KVLayer(spec, good, good, k_scale=-1.0, v_scale=1.0)
        octavo.kv_write(layer, np.ones((1, 2, 32), F32), np.ones((1, 2, 32), F32), np.zeros(1, np.int32))


@pytest.mark.parametrize("make, kind, words", [
    (lambda s: octavo.AttentionPlan(3, s), octavo.InvalidArgument, "heads_q"),
    (lambda s: octavo.AttentionPlan(4, s, q_dtype="int4"), octavo.InvalidArgument, "int4"),
    (lambda s: octavo.AttentionPlan(4, s, sm_scale=0.0), octavo.InvalidArgument, "sm_scale"),
    (lambda s: octavo.AttentionPlan(4, s, force="attn_decode.none"), octavo.InvalidArgument, "attn_decode.none"),
    (lambda s: octavo.AttentionPlan(4, s, deny=",".join(n for n in octavo.default_context().variants() if "decode" in n)), octavo.Unsupported, "den"),
    (lambda s: octavo.KVSpec(2, 32, layout="NDH"), octavo.InvalidArgument, "NHD, HND, V5D"),
    (lambda s: octavo.KVFormat("e4m3fn", "rows"), octavo.InvalidArgument, "token_head"),
    (lambda s: octavo.KVSpec(2, 32, k="i8"), octavo.InvalidArgument, "scale"),
    (lambda s: octavo.Context("cuda:99"), octavo.Unsupported, "."),
    (lambda s: octavo.Context("tpu"), octavo.InvalidArgument, "tpu"),
    (lambda s: octavo.Context(machine="nowhere"), octavo.InvalidArgument, "nowhere"),
    (lambda s: octavo.PageTable(0, 1, 1), octavo.InvalidArgument, "page_size"),
    (lambda s: octavo.KVPool(s, 0, 1), octavo.InvalidArgument, "n_layers"),
    (lambda s: octavo.KVPool(s, 1, 1).layer(1), octavo.InvalidArgument, "layer"),
    (lambda s: octavo.KVPool(s, 1, 1).copy_page(0, 5), octavo.InvalidArgument, "5"),
])
def test_objects_that_are_refused(make, kind, words):
    with pytest.raises(kind, match=words):
        make(octavo.KVSpec(2, 32, k="f32"))


class Meddler:
    """An array that does something when it is asked for its memory."""

    def __init__(self, x, act):
        self.x, self.act = x, act

    def __dlpack__(self, **how):
        self.act()
        return self.x.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


def test_an_update_that_comes_between_is_named(step):
    """What another thread can do between a run's look at its arrays and its turn, done there by one of the arrays."""
    plan, out = step.update(), np.full((3, 4, 32), 9, F32)

    def one_row_now():
        plan.update(np.array([0, 1], np.int32), step.table, step.lens, n_pages=4)

    with pytest.raises(octavo.InvalidArgument, match="another thread's update came between: q has 3 rows, the plan's step 1 now"):
        plan.run(step.q, step.layer, out=Meddler(out, one_row_now))
    assert (out == 9).all() and plan.info["rows"] == 1
    plan.run(step.q[:1], step.layer, out=out[:1])
    assert (out[0] != 9).all() and (out[1:] == 9).all()


def test_masks_are_held_to_the_step_that_runs():
    spec = octavo.KVSpec(2, 32, k="f32")
    layer, plan = octavo.KVPool(spec, 1, 4).layer(0), octavo.AttentionPlan(4, spec, q_dtype="f32", mask=True)

    def update(*qo):
        n = len(qo) - 1
        plan.update(np.array(qo, np.int32), np.arange(4, dtype=np.int32)[None].repeat(n, 0), np.full(n, 60, np.int32), n_pages=4)

    update(0, 20, 40)
    q, out, mask = np.ones((40, 4, 32), F32), np.full((40, 4, 32), 9, F32), np.ones((40, 1), np.uint32)
    with pytest.raises(octavo.InvalidArgument, match="mask: .* 40 rows"):   # as many rows as before, now of one sequence
        plan.run(q, layer, out=Meddler(out, lambda: update(0, 40)), mask=mask)
    assert (out == 9).all()


def attributes(call):
    with pytest.raises(octavo.OctavoError) as e:
        call()
    assert str(e.value) == f"{e.value.where}: {e.value.text}"
    return e.value.status, e.value.name, e.value.where, e.value.text


@pytest.mark.parametrize("call, where, text", [
    (lambda: octavo.quantize(np.ones(16, F32), "f16"), "dtype", "is f16; must be e4m3fn, e4m3fnuz, e5m2, i8 or, to quantize and dequantize, v4"),
    (lambda: octavo.quantize(np.ones(16, F32), scale="layer"), "scale", "is 'layer'; must be numbers or \"token_head\""),
    (lambda: octavo.quantize(np.ones((2, 3, 16), F32), scale=np.ones(2, F32)), "scale", "has shape [2]; must be a number, [3] or [3, 16]"),
    (lambda: octavo.calibrate(np.ones((2, 16), F32)), "x", "has shape [2, 16]; must be [tokens, heads, dim] here"),
    (lambda: octavo.calibrate(np.ones((2, 3, 16), F32), mode="page"), "mode", "is 'page'; must be layer, layer_head or channel"),
    (lambda: octavo.dequantize(np.ones(16, F32)), "codes", "is float32; must be of one byte an element"),
])
def test_numbers_refuse_with_the_same_attributes(call, where, text):
    assert attributes(call) == (1, "invalid_argument", where, text)


def test_tables_say_what_was_asked_for():
    table, twin = octavo.PageTable(4, 8, 2), octavo.TwinPageTable(4, 8, 4, 2, 4)
    table.append(0, 6)
    wrong = "an argument is wrong whatever the machine"
    for call, where, text in (
        (lambda: table.append(7, 3), "oct_kv_table_append", f"sequence 7, 3 tokens: {wrong}"),
        (lambda: table.append(1, 99), "oct_kv_table_append", "sequence 1, 99 tokens: the pool has too few free pages"),
        (lambda: table.free(7), "oct_kv_table_free", f"sequence 7: {wrong}"),
        (lambda: table.slide(7), "oct_kv_table_slide", f"sequence 7: {wrong}"),
        (lambda: table.truncate(0, 9), "oct_kv_table_truncate", f"sequence 0, 9 tokens: {wrong}"),
        (lambda: table.share(0, 1, 9), "oct_kv_table_share", f"sequence 0 to sequence 1, 9 tokens: {wrong}"),
        (lambda: twin.append(7, 3), "oct_kv_twin_append", f"sequence 7, 3 tokens: {wrong}"),
        (lambda: twin.truncate(0, 9), "oct_kv_twin_truncate", f"sequence 0, 9 tokens: {wrong}"),
        (lambda: twin.free(7), "oct_kv_twin_free", f"sequence 7: {wrong}"),
    ):
        assert attributes(call)[2:] == (where, text)
    for tables in (table, twin.full, twin.window):   # none of them answers as for an empty one
        for call in (lambda: tables.batch([0, 9]), lambda: tables.pages(9), lambda: tables.length(9)):
            assert attributes(call) == (1, "invalid_argument", "sequence", "is 9; the table has no such sequence")
    assert table.batch([0, 1])[1].tolist() == [6, 0] and table.pages_needed(9, 1) == -1


def test_texts_that_are_cut_inside_a_character():
    for extra in range(4):
        status, _, where, text = attributes(lambda: octavo.KVFormat("x" * extra + "\N{EURO SIGN}" * 300))
        assert (status, where) == (1, "dtype") and 'is "' + "x" * extra + "\N{EURO SIGN}" * 80 in text


class Elsewhere:
    """An array of a GPU that nobody has: only its address is looked at."""

    def __init__(self, device):
        self.device = device
        self.asked = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **how):
        import ctypes
        self.asked.append(how)
        api = ctypes.pythonapi
        shape = (ctypes.c_int64 * 3)(3, 4, 32)
        # version, manager, deleter, flags, then the tensor
        block = (ctypes.c_uint64 * 16)(1 | 1 << 32, 0, 0, 0, 4096, self.device[0] | self.device[1] << 32, 3 | (2 | 32 << 8 | 1 << 16) << 32, ctypes.addressof(shape), 0, 0)
        self.keep = shape, block
        api.PyCapsule_New.restype = ctypes.py_object
        api.PyCapsule_New.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
        return api.PyCapsule_New(ctypes.addressof(block), b"dltensor_versioned", None)


def test_memory_of_another_device_is_refused(step):
    there = Elsewhere((2, 1))
    with pytest.raises(octavo.InvalidArgument, match="q: lies on cuda:1; the context computes on cpu"):
        step.update().run(there, step.layer)
    assert there.asked == [{"max_version": (1, 1)}]
