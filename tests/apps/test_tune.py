"""octavo tune and the file it writes: what is measured, where it is kept, who reads it, and what is refused."""
import json
import os
import re

import pytest

PAIRS = ["read_l1_bytes", "read_l2_bytes", "read_l3_bytes", "read_memory_bytes", "copy_memory_bytes", "fma_avx2_flops", "fma_avx512_flops",
         "dot_bf16_flops", "dot_i8_ops", "convert_elements", "convert_i8_elements", "dot_amx_bf16_flops", "copy_l1_bytes", "copy_l2_bytes", "copy_l3_bytes"]


@pytest.fixture(scope="module")
def tuned(octavo, tmp_path_factory):
    path = tmp_path_factory.mktemp("rates") / "rates.json"
    octavo("tune", "--seconds", "0.1", "--out", path, "-t", "1")
    return path


def changed(tuned, tmp_path, change):
    rates = json.loads(tuned.read_text())
    change(rates)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(rates))
    return path


def test_the_file_holds_every_rate(tuned):
    rates = json.loads(tuned.read_text())
    assert set(rates) == {"octavo_rates", "cpu", "source", "threads", "clock_hz", *PAIRS}
    assert rates["octavo_rates"] == 1 and rates["threads"] == 1 and rates["source"].startswith("octavo tune, 20")
    assert rates["clock_hz"] > 1e8 and rates["read_memory_bytes"][0] > 1e7
    assert all(rates[f"{what}_{level}_bytes"][0] > 1e7 for what in ("read", "copy") for level in ("l1", "l2"))
    # Without the instructions there is no rate.
    flags = next(line for line in open("/proc/cpuinfo") if line.startswith("flags")).split()
    for name, flag in [("fma_avx2_flops", "avx2"), ("fma_avx512_flops", "avx512f"), ("dot_bf16_flops", "avx512_bf16"), ("dot_i8_ops", "avx512_vnni")]:
        assert (rates[name][0] > 0) == (flag in flags), name


def test_machine_shows_the_rates_and_where_they_are_from(octavo, tuned):
    rates = json.loads(tuned.read_text())
    shown = json.loads(octavo("machine", "--rates", tuned, "-o", "json").out)["rates"]
    assert shown["source"] == rates["source"]
    for name in PAIRS:
        key = name.replace("_bytes", "_bytes_per_s").replace("_flops", "_flop_per_s").replace("_ops", "_op_per_s").replace("_elements", "_elements_per_s")
        assert shown["measured"][key] == pytest.approx(rates[name], rel=1e-3), name
    assert rates["source"] in octavo("machine", "--rates", tuned).out
    assert json.loads(octavo("machine", "--rates", "none", "-o", "json").out)["rates"]["measured"] is None


def test_kept_for_later_runs_of_this_user(octavo, tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert json.loads(octavo("machine", "-o", "json", env=environment).out)["rates"]["measured"] is None
    assert str(tmp_path / "cache" / "octavo" / "rates.json") in octavo("tune", "--seconds", "0.1", "-t", "1", env=environment).out
    assert "octavo tune" in octavo("machine", env=environment).out
    without = {**environment, "XDG_CACHE_HOME": "relative", "HOME": str(tmp_path / "home")}
    octavo("tune", "--seconds", "0.1", "-t", "1", env=without)
    assert (tmp_path / "home" / ".cache" / "octavo" / "rates.json").exists()
    # A broken file that nobody named is said and not used.
    (tmp_path / "cache" / "octavo" / "rates.json").write_text("{}")
    result = octavo("machine", "-o", "json", env=environment)
    assert json.loads(result.out)["rates"]["measured"] is None and "not used" in result.err


def test_nowhere_to_keep_it(octavo):
    assert "--out" in octavo("tune", "--seconds", "0.1", env={"PATH": os.environ["PATH"]}, check=1).err


def test_explain_predicts_by_the_rates(octavo, tiny, tuned, tmp_path):
    """A machine whose memory reads a thousandth as fast takes far longer for the same bytes."""
    slow = changed(tuned, tmp_path, lambda rates: rates.update(read_memory_bytes=[1e5, 1e5]))

    def seconds(path):
        operations = json.loads(octavo("explain", "-m", tiny, "-o", "json", "--rates", path).out)["attn_full"]["operations"]
        return min(row["seconds"] for row in operations[0]["variants"] if row["state"] in ("chosen", "eligible"))

    assert seconds(slow) > 50 * seconds(tuned)


def test_a_file_from_before_the_last_rates_is_read(octavo, tuned, tmp_path):
    for n, lacks in (3, "copy_l1_bytes_per_s"), (5, "convert_i8_elements_per_s"):
        old = changed(tuned, tmp_path, lambda rates: [rates.pop(name) for name in PAIRS[-n:]])
        shown = json.loads(octavo("machine", "--rates", old, "-o", "json").out)["rates"]["measured"]
        assert shown["convert_elements_per_s"][0] > 0 and shown[lacks] == [0, 0]


@pytest.mark.parametrize("change, named", [
    (lambda rates: rates.pop("clock_hz"), "clock_hz"),
    (lambda rates: rates.pop("convert_i8_elements"), "convert_i8_elements"),
    (lambda rates: rates.pop("copy_l2_bytes"), "copy_l2_bytes"),
    (lambda rates: rates.update(copy_l3_bytes=[-1, -1]), "copy_l3_bytes"),
    (lambda rates: rates.update(octavo_rates=2), "octavo_rates"),
    (lambda rates: rates.update(surplus=1), "keys"),
    (lambda rates: rates.update(threads=0), "threads"),
    (lambda rates: rates.update(threads=1.5), "threads"),
    (lambda rates: rates.update(cpu=5), "cpu"),
    (lambda rates: rates.update(cpu="x" * 64), "cpu"),
    (lambda rates: rates.update(cpu="Other CPU"), "Other CPU"),
    (lambda rates: rates.update(cpu=rates["cpu"][:rates["cpu"].index(" [")]), "another CPU"),
    (lambda rates: rates.update(cpu=re.sub(r"/(\d+) ", lambda m: f"/{int(m[1]) + 1} ", rates["cpu"])), "another CPU"),
    (lambda rates: rates.update(read_memory_bytes=[1e9]), "read_memory_bytes"),
    (lambda rates: rates.update(read_memory_bytes=[1e9, "fast"]), "read_memory_bytes"),
    (lambda rates: rates.update(read_memory_bytes=[0, 0]), "read_memory_bytes"),
    (lambda rates: rates.update(dot_i8_ops=[-1, -1]), "dot_i8_ops"),
], ids=["no clock", "a later rate alone", "a copy", "negative copy", "version", "surplus", "0 threads", "1.5 threads", "cpu", "long cpu", "other cpu", "brand alone", "other stepping", "one", "text", "zero", "negative"])
def test_a_wrong_file_is_refused(octavo, tuned, tmp_path, change, named):
    result = octavo("machine", "--rates", changed(tuned, tmp_path, change), check=1)
    assert named in result.err and "changed.json" in result.err and result.out == ""


@pytest.mark.parametrize("content", [b"", b"[", b"[]", b'"text"', b"\x00", b"\xff\xfe", b'{"octavo_rates": 1, "octavo_rates": 1}', b"1" * 100_000])
def test_what_is_no_file_of_rates_is_refused(octavo, tmp_path, content):
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    assert "odd.json" in octavo("machine", "--rates", path, check=1).err


def test_an_unwritable_file_leaves_nothing(octavo, tmp_path):
    assert "absent" in octavo("tune", "--seconds", "0.1", "-t", "1", "--out", tmp_path / "absent" / "x.json", check=1).err
    assert list(tmp_path.iterdir()) == []
