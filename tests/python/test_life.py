"""Who keeps what alive, what leaks, and threads."""
import array
import ctypes
import gc
import mmap
import os
import subprocess
import sys
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest

import octavo

F32 = np.float32


def make(spec=None, n=32):
    spec = spec or octavo.KVSpec(2, 32, k="e4m3fn")
    layer = octavo.KVPool(spec, 1, 4).layer(0)
    rng = np.random.default_rng(1)
    octavo.kv_write(layer, *rng.standard_normal((2, n, 2, 32)).astype(F32), np.arange(n, dtype=np.int32))
    plan = octavo.AttentionPlan(4, spec, q_dtype="f32")
    plan.update(np.array([0, 1], np.int32), np.array([[0, 1]], np.int32), np.array([n], np.int32), n_pages=4)
    return layer, plan, rng.standard_normal((1, 4, 32)).astype(F32)


def test_parts_outlive_what_they_were_made_from():
    layer, plan, q = make()
    want = plan.run(q, layer)
    gc.collect()   # the pool has no other name than the layer's
    k = np.asarray(layer.k)
    before = k.copy()
    np.testing.assert_array_equal(plan.run(q, layer), want)
    del layer, plan
    gc.collect()
    filler = [np.ones(1 << 16) for _ in range(20)]
    np.testing.assert_array_equal(k, before)
    assert len(filler) == 20
    context = octavo.Context(threads=2)
    pool = octavo.KVPool(octavo.KVSpec(1, 16), 1, 1, context=context)
    del context
    gc.collect()
    assert pool.layer(0).k.shape == (1, 16, 1, 16)


def test_layers_by_hand_keep_and_release_their_arrays():
    spec = octavo.KVSpec(2, 32, k=octavo.KVFormat("e4m3fn", "token_head", scale_dtype="f32"))
    base = np.zeros((4, 16, 2, 32), np.uint8)
    scale = np.zeros((4, 16, 2), F32)
    count = sys.getrefcount(base)
    layer = octavo.KVLayer(spec, base, base.copy(), k_token_scale=scale, v_token_scale=scale.copy())
    assert sys.getrefcount(base) > count
    with pytest.raises((ValueError, BufferError)):
        base.resize((1,))   # its memory is lent
    octavo.kv_write(layer, np.ones((1, 2, 32), F32), np.ones((1, 2, 32), F32), np.zeros(1, np.int32))
    assert base[0, 0].any()
    with pytest.raises(octavo.InvalidArgument):
        octavo.KVLayer(spec, base, base.view(np.int8), k_token_scale=scale, v_token_scale=scale)
    del layer
    gc.collect()
    assert sys.getrefcount(base) == count


def test_pages_come_and_go_without_copies():
    layer, _, _ = make()
    k = layer.k
    assert k.dtype == "e4m3fn" and k.shape == (4, 16, 2, 32) and k.__dlpack_device__() == (1, 0)
    a, b = np.asarray(k), np.from_dlpack(k.bits())
    assert a.ctypes.data == b.ctypes.data and a.dtype == b.dtype == np.uint8
    a[0, 0, 0, 0] = 77
    assert np.from_dlpack(layer.k.bits())[0, 0, 0, 0] == 77
    with pytest.raises((RuntimeError, BufferError)):
        np.from_dlpack(k)   # NumPy knows no 8-bit float
    for form, bits in (("f16", np.float16), ("bf16", np.uint16), ("f32", np.float32)):
        x = octavo.KVPool(octavo.KVSpec(1, 16, k=form), 1, 1).layer(0).k
        assert np.asarray(x).dtype == bits and np.asarray(x.bits()).dtype == (np.float32 if form == "f32" else np.uint16)
    ref = weakref.ref(b)
    del a, b
    assert ref() is None
    capsules = [k.__dlpack__(), k.__dlpack__(max_version=(1, 0), stream=None)]   # never taken: their memory goes with them
    assert "dltensor_versioned" in repr(capsules[1]) and "versioned" not in repr(capsules[0])
    assert np.from_dlpack(k.bits(), device="cpu", copy=False).ctypes.data == np.asarray(k).ctypes.data
    for how in (dict(copy=True), dict(dl_device=(2, 0)), dict(dl_device=(1, 1))):
        with pytest.raises(BufferError, match="copy the array that you get"):
            k.bits().__dlpack__(**how)
    with pytest.raises(BufferError):
        np.from_dlpack(k.bits(), copy=True)


def test_other_packages_types_in():
    layer, plan, q = make()
    want = plan.run(q, layer)
    spec8 = layer.spec
    same = octavo.KVLayer(spec8, np.asarray(layer.k).view(ml_dtypes.float8_e4m3fn), layer.v)   # ml_dtypes' array, and a PoolArray by DLPack
    np.testing.assert_array_equal(plan.run(q, same), want)
    half = octavo.AttentionPlan(4, spec8, q_dtype=ml_dtypes.bfloat16)
    half.update(np.array([0, 1], np.int32), np.array([[0, 1]], np.int32), np.array([32], np.int32), n_pages=4)
    a = half.run(q.astype(ml_dtypes.bfloat16), layer)
    b = half.run(q.astype(ml_dtypes.bfloat16).view(np.uint16), layer)
    assert a.dtype == ml_dtypes.bfloat16 and b.dtype == np.uint16
    np.testing.assert_array_equal(a.view(np.uint16), b)

    class Lent:   # a producer from before DLPack 1.0
        def __init__(self, x):
            self.x = x

        def __dlpack__(self, stream=None):
            return self.x.__dlpack__()

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()
    np.testing.assert_array_equal(plan.run(Lent(q), layer, out=np.empty_like(q)), want)


def test_arrays_of_ctypes():
    """Their buffers tell no strides."""
    layer, plan, q = make()
    want = plan.run(q, layer)
    c_q, c_out = (((ctypes.c_float * 32) * 4) * 1)(), (((ctypes.c_float * 32) * 4) * 1)()
    np.asarray(c_q)[:] = q
    plan.update((ctypes.c_int32 * 2)(0, 1), ((ctypes.c_int32 * 2) * 1)((0, 1)), (ctypes.c_int32 * 1)(32), n_pages=4)
    assert plan.run(c_q, layer, out=c_out) is c_out
    np.testing.assert_array_equal(np.asarray(c_out), want)
    with pytest.raises(octavo.InvalidArgument, match=r"q: is float32\[4, 32\]"):
        plan.run(c_q[0], layer)


def test_dlpack_where_the_buffer_is_of_no_use():
    """As of an array of jax that lies on a GPU, or is of bfloat16."""
    layer, plan, q = make()
    want, out = plan.run(q, layer), np.empty_like(q)

    class Lends:
        def __dlpack__(self, **how):
            return q.__dlpack__(**how)

        def __dlpack_device__(self):
            return q.__dlpack_device__()

    class Closed(Lends, mmap.mmap):   # its buffer raises
        pass

    class Letters(Lends, array.array):   # its buffer is of elements that are none of ours
        pass

    closed = Closed(-1, 16)
    closed.close()
    with pytest.raises(ValueError):
        memoryview(closed)
    assert memoryview(Letters("u", "ab")).format not in "fedbBhHiIlLqQ?"
    for lent in (closed, Letters("u", "ab")):
        out[:] = 9
        np.testing.assert_array_equal(plan.run(lent, layer, out=out), want)
    plain = mmap.mmap(-1, 16)
    plain.close()
    for x in (plain, array.array("u", "ab")):
        with pytest.raises(TypeError, match="q: "):
            plan.run(x, layer, out=out)


def test_equal_specs_and_formats_are_one_key():
    def spec(**more):
        return octavo.KVSpec(2, 32, **dict(k=octavo.KVFormat("e4m3fn", "token_head")) | more)
    a, b = spec(), spec()
    assert a == b and hash(a) == hash(b) and a.k == b.v and hash(a.k) == hash(b.v) and len({a, b, a.k, b.k, b.v}) == 2
    for other in (spec(layout="HND"), spec(page_size=8), spec(dim_v=16), spec(v="bf16"), spec(k=octavo.KVFormat("e4m3fn", "token_head", scale_dtype="f32"))):
        assert a != other and other not in {a}
    assert a.k != octavo.KVFormat("e4m3fn", "token_head", rotated=True) and a != a.k and a != None and a.k != "e4m3fn"   # noqa: E711
    assert octavo.KVPool(a, 1, 1).layer(0).spec == a and hash(octavo.KVPool(a, 1, 1).spec) == hash(a)


def test_nothing_leaks():
    layer, plan, q = make()
    out = np.empty_like(q)
    counts = [sys.getrefcount(x) for x in (q, out, layer, plan)]
    blocks = None
    for i in range(400):
        plan.run(q, layer, out=out, return_lse=True)
        for bad in (q[:, :3], q.astype(np.float64), [1]):
            with pytest.raises((octavo.InvalidArgument, TypeError)):
                plan.run(bad, layer, out=out)
        octavo.quantize(q)
        np.asarray(layer.k)
        layer.k.__dlpack__(max_version=(1, 1))
        if i == 100:
            gc.collect()
            blocks = sys.getallocatedblocks()
    gc.collect()
    assert [sys.getrefcount(x) for x in (q, out, layer, plan)] == counts
    assert sys.getallocatedblocks() - blocks < 100


def test_the_gil_is_released_and_threads_share_a_plan():
    """Four threads update and run one plan and one context; every result is one of theirs, whole."""
    layer, plan, q = make(n=32)
    n_keys = [5, 17, 32]
    want = {}
    for n in n_keys:
        plan.update(np.array([0, 1], np.int32), np.array([[0, 1]], np.int32), np.array([n], np.int32), n_pages=4)
        want[n] = plan.run(q, layer).tobytes()
    failures = []

    def work(seed):
        rng = np.random.default_rng(seed)
        own = octavo.AttentionPlan(4, layer.spec, q_dtype="f32")
        for _ in range(150):
            n = int(rng.choice(n_keys))
            for p, wanted in ((plan, set(want.values())), (own, {want[n]})):
                p.update(np.array([0, 1], np.int32), np.array([[0, 1]], np.int32), np.array([n], np.int32), n_pages=4)
                if p.run(q, layer).tobytes() not in wanted or p.info["rows"] != 1 or "attn_decode" not in octavo.explain(p):
                    failures.append(n)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures

    # A long run lets another thread go on: it counts while the first computes.
    big = octavo.KVSpec(8, 128, k="f32")
    pages = octavo.KVPool(big, 1, 64).layer(0)
    long_plan = octavo.AttentionPlan(8, big, q_dtype="f32", context=octavo.Context(threads=1), force="attn_extend.scalar")
    long_plan.update(np.array([0, 512], np.int32), np.arange(64, dtype=np.int32)[None], np.array([1024], np.int32), n_pages=64)
    ticks, running = [0], threading.Event()

    def count():
        running.set()
        while running.is_set():
            ticks[0] += 1

    counter = threading.Thread(target=count)
    counter.start()
    running.wait()
    before = ticks[0]
    long_plan.run(np.ones((512, 8, 128), F32), pages)
    seen = ticks[0] - before
    running.clear()
    counter.join()
    assert seen > 1000


def test_exit_with_everything_alive_is_quiet():
    """No leak warning, no crash, whatever is still alive at the end of the process; a forked child makes its own context."""
    program = ("import octavo, numpy as np, os, threading, time\n"
               "s = octavo.KVSpec(1, 16, k='f32'); l = octavo.KVPool(s, 1, 1).layer(0)\n"
               "octavo.kv_write(l, np.ones((1, 1, 16), 'f4'), np.ones((1, 1, 16), 'f4'), np.zeros(1, 'i4'))\n"
               "pid = os.fork()\n"
               "if pid == 0:\n"
               "    print(octavo.quantize(np.ones(3, 'f4')).tolist()); raise SystemExit(0)\n"
               "os.waitpid(pid, 0)\n"
               "def hold(pool, held):\n"
               "    held.set(); time.sleep(60)\n"
               "held = threading.Event()\n"
               "threading.Thread(target=hold, args=(octavo.KVPool(s, 1, 1), held), daemon=True).start()\n"
               "held.wait()\n")
    done = subprocess.run([sys.executable, "-B", "-W", "ignore::DeprecationWarning", "-c", program], capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.returncode == 0 and done.stderr == "" and done.stdout == "[56, 56, 56]\n", done
