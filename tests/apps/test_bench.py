"""octavo bench: what is refused, what rows and reports hold, that peers take part. No figure is judged here: that needs a quiet machine."""
import csv
import datetime
import io
import json
import statistics

import pytest

KEYS = ("op variant device cpu k_format v_format heads_q heads_kv dim_k dim_v page batch q_len kv_len window threads ns_median ns_min gbps gflops "
        "fraction_of_limit").split()
SMALL = ["-t", "1", "-r", "1", "--heads", "4/2", "--dim", "32", "--kv-len", "64", "--warm"]


@pytest.fixture(scope="module")
def rates(octavo, tmp_path_factory):
    """So that no row waits for a measurement of the machine."""
    path = tmp_path_factory.mktemp("rates") / "rates.json"
    octavo("tune", "--seconds", "0.1", "--out", path, "-t", "1")
    return ["--rates", path]


WRONG = [
    (["bench"], "attn"),
    (["bench", "dance"], "dance"),
    (["help", "bench", "dance"], "dance"),
    (["help", "bench", "attn", "more"], "more"),
    (["bench", "attn", "--frobnicate"], "--frobnicate"),
    (["bench", "steps", "--chunk", "4", "--conc", "4"], "--chunk"),
    (["bench", "steps", "--heads", "8/2,4/2"], "one value"),
    (["bench", "attn", "stray"], "stray"),
    (["bench", "attn", "--op", "attn"], "--op"),
    (["bench", "attn", "--op", "attn_decode,"], "--op"),
    (["bench", "attn", "--heads", "32/"], "--heads"),
    (["bench", "attn", "--heads", "0/8"], "--heads"),
    (["bench", "attn", "--heads", "1/2/3"], "--heads"),
    (["bench", "attn", "--heads", "6/4"], "multiple of KV heads"),
    (["bench", "attn", "--dim", "4"], "--dim"),
    (["bench", "attn", "--dim", "44"], "dim"),
    (["bench", "attn", "--batch", "0"], "--batch"),
    (["bench", "attn", "--batch", "1,,2"], "--batch"),
    (["bench", "attn", "--q-len", "0"], "--q-len"),
    (["bench", "attn", "--q-len", "17"], "at most 16 rows"),
    (["bench", "attn", "--op", "attn_extend", "--q-len", "16"], "more than 16 rows"),
    (["bench", "attn", "--q-len", "8", "--kv-len", "4"], "more rows than keys"),
    (["bench", "attn", "--page", "1025"], "--page"),
    (["bench", "attn", "-ctk", "q4_0"], "q4_0"),
    (["bench", "attn", "-ctk", "e4m3,"], "-ctk"),
    (["bench", "attn", "-ctv", "e5m3"], "e5m3"),
    (["bench", "attn", "-t", "0"], "-t"),
    (["bench", "attn", "-r", "0"], "-r"),
    (["bench", "attn", "-r", "102"], "-r"),
    (["bench", "attn", "-o", "xml"], "xml"),
    (["bench", "attn", "--operand", "e4m3"], "--operand"),
    (["bench", "attn", "--peers", "torch"], "torch"),
    (["bench", "attn", "--peers", "ggml", "--peer-types", "q9", *SMALL], "q9"),
    (["bench", "attn", "--force", "attn_decode.warp", *SMALL], "warp"),
    (["bench", "attn", "--op", "kv_write", "--force", "kv_write.scalar", *SMALL], "variant of kv_write"),
    (["bench", "attn", "--op", "attn_decode,attn_merge", "--all-variants", *SMALL], "variant of attn_merge"),
    (["bench", "attn", "--op", "kv_write", "--deny", "kv_write.scalar", *SMALL], "variant of kv_write"),
    (["bench", "attn", "--batch", ",".join(map(str, range(1, 61))), "--page", ",".join(map(str, range(1, 11)))], "500 combinations"),
    (["bench", "regret", "--problems", "0"], "--problems"),
    (["bench", "regret", "--problems", "5000"], "--problems"),
    (["bench", "regret", "--numbers", "1,x"], "--numbers"),
    (["bench", "regret", "--budget", "0"], "--budget"),
    (["bench", "regret", "-o", "md"], "md"),
    (["bench", "regret", "stray"], "stray"),
    (["bench", "model"], "-m"),
    (["bench", "model", "-m", "x", "-p", "1,x"], "-p"),
    (["bench", "model", "-m", "x", "-p", "0", "-n", "0"], "nothing to measure"),
    (["bench", "model", "-m", "x", "-ctk", "q8_0"], "q8_0"),
    (["bench", "model", "-m", "x", "-ctk", "e4m3:layer"], "calibrated"),
    (["bench", "model", "-m", "x", "--peers", "ggml"], "--peers"),
    (["bench", "model", "-m", "x", "--peers", "llama", "--peer-types", "q2"], "q2"),
    (["bench", "model", "-m", "x", "-o", "sql"], "sql"),
    (["bench", "model", "-m", "x", "-r", "32"], "-r"),
]


@pytest.mark.parametrize("typed, named", WRONG, ids=[" ".join(typed)[:60] for typed, _ in WRONG])
def test_what_is_typed_wrong_is_named(octavo, rates, typed, named):
    if typed[0] == "bench" and len(typed) > 2 and typed[1] == "attn":
        typed = typed + rates
    result = octavo(*typed, check=2, threads=False)
    assert named in result.err and result.out == ""


def test_help_lists_every_flag(octavo):
    assert octavo("help", "bench").out == octavo("bench", "--help").out
    text = octavo("help", "bench", "attn").out
    assert text == octavo("bench", "attn", "--help").out
    for flag in "--op --heads --dim --batch --q-len --kv-len --page --window -ctk -ctv -t -r -o --force --deny --peers".split():
        assert f" {flag}" in text, flag
    assert all(len(line) <= 120 for line in text.splitlines())


def test_every_operation_makes_rows_with_exactly_these_keys(octavo, rates):
    rows = json.loads(octavo("bench", "attn", *rates, *SMALL, "--op", "kv_write,attn_decode,attn_extend,attn_merge", "--q-len", "2,32", "--batch", "1,3", "-o", "json").out)
    # Decode takes 2 rows, extend 32, the others both.
    assert [(row["op"], row["batch"], row["q_len"]) for row in rows] == [
        *[("kv_write", b, q) for b in (1, 3) for q in (2, 32)], *[("attn_decode", b, 2) for b in (1, 3)], *[("attn_extend", b, 32) for b in (1, 3)],
        *[("attn_merge", b, q) for b in (1, 3) for q in (2, 32)]]
    for row in rows:
        assert list(row) == KEYS
        assert row["variant"].startswith(row["op"] + ".") and row["device"] == "cpu" and row["cpu"] and row["threads"] == 1
        assert 0 < row["ns_min"] <= row["ns_median"] and row["gbps"] > 0 and row["fraction_of_limit"] > 0
        assert (row["gflops"] > 0) == (row["op"] != "kv_write")


def test_bytes_and_operations_are_counted_by_hand(octavo, rates):
    rows = json.loads(octavo("bench", "attn", *rates, "-t", "1", "-r", "1", "--heads", "8/2", "--dim", "64/32", "--kv-len", "100", "--q-len", "3", "--window", "0,10", "--batch", "2",
                             "-ctk", "i8,bf16", "-ctv", "e4m3", "-o", "json").out)
    found = [(row["k_format"], row["window"], round(row["gbps"] * row["ns_median"]), round(row["gflops"] * row["ns_median"])) for row in rows]
    pairs, pairs_window = 98 + 99 + 100, 30
    flops, flops_window = 2 * 8 * pairs * 96 * 2, 2 * 8 * pairs_window * 96 * 2
    assert [f[:2] for f in found] == [("i8:token", 0), ("i8:token", 10), ("bf16", 0), ("bf16", 10)]
    wanted = [(2 * 2 * 100 * (64 + 2 + 32), flops), (2 * 2 * 12 * (64 + 2 + 32), flops_window), (2 * 2 * 100 * (128 + 32), flops), (2 * 2 * 12 * (128 + 32), flops_window)]
    for (_, _, n_bytes, n_flops), (bytes_wanted, flops_wanted) in zip(found, wanted):
        assert n_bytes == pytest.approx(bytes_wanted, rel=1e-3) and n_flops == pytest.approx(flops_wanted, rel=1e-3)


def test_forms_say_the_same(octavo, rates, tmp_path):
    typed = ["bench", "attn", *rates, *SMALL, "-ctk", "e4m3,i8+rot"]
    table = octavo(*[word for word in typed if word != "--warm"]).out
    assert "attn\\_decode." in table and "i8:token+rot" in table and "of limit" in table and "saturated" in table and "cold: layers take turns" in table
    assert "warm: one layer" in octavo(*typed).out
    lines = [json.loads(line) for line in octavo(*typed, "-o", "jsonl").out.splitlines()]
    assert [list(line) for line in lines] == [KEYS, KEYS]
    rows = list(csv.DictReader(io.StringIO(octavo(*typed, "-o", "csv").out)))
    assert [list(row) for row in rows] == [KEYS, KEYS] and [row["k_format"] for row in rows] == ["e4m3fn", "i8:token+rot"]
    octavo(*typed, "-o", "jsonl", "--output", tmp_path / "rows.jsonl")
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 2
    assert "absent" in octavo(*typed, "--output", tmp_path / "absent" / "x", check=1).err


def test_variants_are_forced_denied_and_listed(octavo, rates):
    typed = ["bench", "attn", *rates, *SMALL, "-o", "json"]
    assert [row["variant"] for row in json.loads(octavo(*typed, "--force", "attn_decode.scalar").out)] == ["attn_decode.scalar"]
    every = [row["variant"] for row in json.loads(octavo(*typed, "--all-variants").out)]
    assert "attn_decode.scalar" in every and len(set(every)) == len(every)
    if len(every) > 1:
        others = [row["variant"] for row in json.loads(octavo(*typed, "--all-variants", "--deny", every[0]).out)]
        assert sorted([every[0], *others]) == sorted(every)
    # Nothing left is no mistake of the command line's form.
    assert "denied" in octavo(*typed, "--deny", ",".join(every), check=1).err


def test_ggml_takes_part(octavo, rates):
    result = octavo("bench", "attn", *rates, *SMALL, "--peers", "ggml", "--batch", "2", "--window", "0,16", "-o", "json")
    rows = json.loads(result.out)
    assert [(row["variant"], row["k_format"]) for row in rows if row["variant"] == "ggml"] == [("ggml", kind) for kind in ("f16", "bf16", "q8_0", "q4_0")] * 2
    q8 = next(row for row in rows if row["k_format"] == "q8_0")
    assert q8["gbps"] * q8["ns_median"] == pytest.approx(2 * 64 * 2 * 2 * 34, rel=1e-3)      # a block of 32 has 34 bytes
    # Dims that are no whole blocks: said, and no row.
    result = octavo("bench", "attn", *rates, *SMALL, "--dim", "48", "--peers", "ggml", "-o", "json")
    assert "q8_0" in result.err and {row["k_format"] for row in json.loads(result.out)} == {"e4m3fn", "f16", "bf16"}


# ---- on a GPU: here the double of its driver, which runs the kernels on the host --------------------------------------------


@pytest.fixture(scope="module")
def cuda(request):
    double = request.config.getoption("--double")
    if not double:
        pytest.skip("this build has no code for GPUs")
    return ["--device", "cuda", "--device-library", double]


def test_operations_on_a_gpu(octavo, cuda):
    small = ["-r", "1", "--heads", "2/1", "--dim", "32", "--kv-len", "32", "--batch", "2"]
    rows = json.loads(octavo("bench", "attn", *cuda, *small, "--op", "kv_write,attn_decode,attn_extend,attn_merge", "--q-len", "2,20", "--warm", "-o", "json").out)
    assert [(row["op"], row["q_len"]) for row in rows] == [("kv_write", 2), ("kv_write", 20), ("attn_decode", 2), ("attn_extend", 20), ("attn_merge", 2), ("attn_merge", 20)]
    for row in rows:
        assert list(row) == KEYS
        # Of several rows for a merge the library does not say which it took.
        assert row["variant"].startswith(row["op"] + ".") or row["variant"] == row["op"] == "attn_merge"
        assert row["device"] == "a double of an H200" and row["threads"] == 3
        assert 0 < row["ns_min"] <= row["ns_median"] and row["gbps"] > 0 and row["fraction_of_limit"] > 0
    cold = ["bench", "attn", *cuda, "-r", "1", "--heads", "2/1", "--dim", "32", "--kv-len", "32"]
    every = json.loads(octavo(*cold, "--all-variants", "-o", "json").out)
    assert {"attn_decode.simt4", "attn_decode.mma_8_8_128", "attn_decode.sm90a_8_8_64_8"} <= {row["variant"] for row in every}
    forced = octavo(*cold, "--force", "attn_decode.simt8").out
    assert "a double of an H200" in forced and "attn\\_decode.simt8" in forced and "cold: caches flushed" in forced and "copied at" in forced


def test_regret_on_a_gpu(octavo, cuda):
    report = json.loads(octavo("bench", "regret", *cuda, "--problems", "1", "--first", 121, "--budget", "1", "-o", "json").out)
    assert report["problems"] == 1 and report["cpu"] == "a double of an H200" and report["threads"] == 3


@pytest.mark.parametrize("typed, named", [(["--device", "hip"], "AMD"), (["--device", "tpu"], "tpu"), (["--device", "cuda:9"], "device"), (["--device", "cuda", "-t", "2"], "-t"),
                                          (["--device", "cuda", "--peers", "ggml"], "--peers")], ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_what_a_gpu_cannot_do_is_named(octavo, cuda, typed, named):
    result = octavo("bench", "attn", *cuda[2:], *typed, check=None)
    assert result.returncode in (1, 2) and named in result.err and result.out == ""


# ---- regret ---------------------------------------------------------------------------------------------------------------


def test_regret_reports(octavo, tmp_path):
    report = json.loads(octavo("bench", "regret", "-t", "1", "--problems", "4", "--first", "1", "--budget", "1", "--save", tmp_path / "all.jsonl", "-o", "json").out)
    assert list(report)[:5] == ["problems", "median_pct", "p95_pct", "worst_pct", "worst"]
    assert report["problems"] == 4 and 0 <= report["median_pct"] <= report["p95_pct"] <= report["worst_pct"] and len(report["worst"]) <= 10
    for row in report["worst"]:
        assert row["chosen"] != row["best"] and row["pct"] > 0
    saved = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [row["number"] for row in saved] == [1, 2, 3, 4]
    cpu = json.loads(octavo("machine", "-o", "json").out)["cpu"]
    assert "/" in cpu and report["cpu"] == cpu and all(row["cpu"] == cpu for row in saved)
    for row in saved:
        assert row["chosen"] in row["seconds"] and set(row["seconds"]) == set(row["predicted"]) and all(s > 0 for s in row["seconds"].values())
        assert not set(row["far"]) & (set(row["seconds"]) - {row["chosen"]})
    assert report["loss_8_bit"]["problems"] == sum(row["loss"] is not None for row in saved) > 0


def test_regret_of_single_problems(octavo, tmp_path):
    """A list of numbers, in its order, is the same problems as the grid in one piece."""
    octavo("bench", "regret", "-t", "1", "--numbers", "170,121", "--budget", "1", "--no-16-bit", "--save", tmp_path / "some.jsonl", "-o", "json")
    octavo("bench", "regret", "-t", "1", "--first", "121", "--problems", "1", "--budget", "1", "--no-16-bit", "--save", tmp_path / "one.jsonl", "-o", "json")
    some = [json.loads(line) for line in (tmp_path / "some.jsonl").read_text().splitlines()]
    one = json.loads((tmp_path / "one.jsonl").read_text())
    assert [row["number"] for row in some] == [170, 121]
    shape = ["number", "op", "k_format", "v_format", "heads_q", "heads_kv", "dim_k", "dim_v", "page", "batch", "q_len", "kv_len", "window", "operand"]
    assert [some[1][key] for key in shape] == [one[key] for key in shape]


def test_regret_of_a_single_variant_is_none(octavo, rates):
    rows = json.loads(octavo("bench", "attn", *rates, *SMALL, "--op", "attn_decode,attn_extend", "--q-len", "1,32", "--all-variants", "-o", "json").out)
    others = [row["variant"] for row in rows if not row["variant"].endswith(".scalar")]
    typed = ["bench", "regret", "-t", "1", "--problems", "2", "--budget", "1", "--no-16-bit", *(["--deny", ",".join(others)] if others else [])]
    text = octavo(*typed).out
    assert "median 0.0 %, p95 0.0 %, worst 0.0 %" in text and "8-bit" not in text


# ---- whole models -----------------------------------------------------------------------------------------------------------

# Those of llama-bench that say something here, in its order, then ours; its JSON has the samples as well.
LLAMA_BENCH_KEYS = ("build_commit cpu_info backends model_filename model_type model_size model_n_params n_batch n_ubatch n_threads type_k type_v n_prompt n_gen n_depth "
                    "test_time avg_ns stddev_ns avg_ts stddev_ts").split()
CSV_KEYS = LLAMA_BENCH_KEYS + ["cpu", "median_ns", "median_ts", "spread_ts"]
MODEL_KEYS = CSV_KEYS + ["samples_ns", "samples_ts"]


def test_models_in_the_form_of_llama_bench(octavo, tiny):
    typed = ["bench", "model", "-m", tiny, "-p", "16,0", "-n", "4", "-d", "0,64", "-ctk", "f16,i8+rot", "-ctv", "f16,e4m3", "-t", "1", "-r", "2", "--peers", "llama"]
    rows = json.loads(octavo(*typed, "-o", "json").out)
    caches = [("octavo", k, v) for k in ("f16", "i8+rot") for v in ("f16", "e4m3")] + [("llama.cpp", "f16", "f16"), ("llama.cpp", "q8_0", "q8_0")]
    tests = [(p, n, d) for d in (0, 64) for p, n in ((16, 0), (0, 4))]
    assert [(row["backends"], row["type_k"], row["type_v"], row["n_prompt"], row["n_gen"], row["n_depth"]) for row in rows] == [cache + test for cache in caches for test in tests]
    for row in rows:
        assert list(row) == MODEL_KEYS and row["model_filename"] == str(tiny) and row["n_threads"] == 1
        assert row["median_ts"] > 0 and row["spread_ts"] >= 0 and row["cpu"] == row["cpu_info"] != ""
        assert len(row["samples_ns"]) == len(row["samples_ts"]) == 2
        tokens = row["n_prompt"] + row["n_gen"]
        for ns, ts in zip(row["samples_ns"], row["samples_ts"]):
            assert ts == pytest.approx(1e9 * tokens / ns, rel=1e-4)
        for samples, name, median in (("samples_ns", "_ns", "median_ns"), ("samples_ts", "_ts", "median_ts")):
            assert row["avg" + name] == pytest.approx(statistics.mean(row[samples]), rel=1e-4)
            assert row["stddev" + name] == pytest.approx(statistics.stdev(row[samples]), rel=1e-2, abs=2 if name == "_ns" else 1e-3 * row["avg_ts"])
            assert min(row[samples]) <= row[median] <= max(row[samples])
        datetime.datetime.fromisoformat(row["test_time"].replace("Z", "+00:00"))
    quick = [*typed[:4], "-p", "8", "-n", "0", "-t", "1", "-r", "1"]
    head = next(line for line in octavo(*quick).out.splitlines() if line.startswith("|"))
    assert [cell.strip() for cell in head.replace("\\", "").strip("|").split("|")] == ["model", "size", "params", "backend", "threads", "type_k", "type_v", "test", "t/s"]
    assert "| pp8 |" in octavo(*quick).out
    table = list(csv.reader(io.StringIO(octavo(*quick, "-o", "csv").out)))
    assert table[0] == CSV_KEYS and all(len(line) == len(CSV_KEYS) for line in table[1:])
    assert list(json.loads(octavo(*quick, "-o", "jsonl").out)) == MODEL_KEYS


def test_a_model_that_is_none_or_too_short(octavo, tiny, tmp_path):
    assert "absent.gguf" in octavo("bench", "model", "-m", tmp_path / "absent.gguf", check=1).err
    assert "longer than the model" in octavo("bench", "model", "-m", tiny, "-d", "100000", check=2).err


def test_steps_sum_a_trace(octavo, rates):
    """One load of two prompts: two whole chunks each, and every operation has its share."""
    flags = ["bench", "steps", "-t", "1", "-r", "1", "--isl", "32", "--osl", "4", "--conc", "1,2", "--chunk", "16", "--heads", "2/1", "--dim", "32", *rates]
    report = json.loads(octavo(*flags, "-o", "json").stdout)
    assert [(load["isl"], load["conc"], load["steps"]) for load in report["loads"]] == [(32, 1, 5), (32, 2, 8)]
    assert report["cpu"] == json.loads(octavo("machine", "-o", "json").out)["cpu"] and report["device"] == report["cpu"]
    for load in report["loads"]:
        for side in ("ours_8_bit", "bf16"):
            parts = load[side]
            assert all(parts[part] > 0 for part in ("write_ms", "decode_ms", "extend_ms"))
            assert abs(parts["write_ms"] + parts["decode_ms"] + parts["extend_ms"] - parts["total_ms"]) < 1e-5
        assert abs(load["ratio"] - load["ours_8_bit"]["total_ms"] / load["bf16"]["total_ms"]) < 1e-2
    assert b"8-bit / bf16" in octavo(*flags).stdout
