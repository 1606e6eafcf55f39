"""octavo compare on tiny models: the forms agree, the numbers mean what they say, nothing shows but what should."""
import csv
import io
import json
import math
import os
import pty
import re
import shutil
import signal
import subprocess
import time

import pytest

KEYS = ["format", "k_scale_mode", "kv_bytes_per_token", "tokens_per_gib", "prefill_tps", "decode_tps", "ppl", "ppl_stderr", "kld_mean", "same_top", "saturated", "text",
        "cpu", "model", "n_threads"]
FORMATS = "f16,bf16,e4m3,e4m3:layer,e4m3:token,e5m2,i8,i8+rot/i8,i8+rot/e4m3,f16/e4m3,llama:f16,llama:q8_0".split(",")
QUICK = ["--tokens", "200", "--chunk", "100", "--depths", "0,64", "--rounds", "1", "--prefill-tokens", "16", "--decode-tokens", "4"]


@pytest.fixture(scope="module")
def saved(octavo, tiny, tmp_path_factory):
    """One run in all its forms, over two texts and both sets of weights."""
    folder = tmp_path_factory.mktemp("compare")
    text = folder / "text, with \"quotes\".txt"
    text.write_text("It was the best of days, it was the worst of nights. " * 12)
    files = [folder / f"report.{ending}" for ending in ("txt", "md", "json", "csv")]
    result = octavo("compare", "-m", tiny, *QUICK, "-f", "built-in", "-f", text, "--f32-weights", "--f32-dir", folder, *[word for path in files for word in ("--save", path)])
    assert result.err == "", "no progress bar in a pipe"
    assert result.out == files[0].read_text()
    return {path.suffix: path.read_text() for path in files} | {"folder": folder, "rows": json.loads(files[2].read_text())}


def test_json_has_the_keys_and_their_types(saved):
    rows = saved["rows"]
    assert len(rows) == 4 * len(FORMATS)
    for row in rows:
        assert list(row) == KEYS
        assert all(isinstance(row[key], str) for key in ("format", "k_scale_mode", "text", "cpu", "model"))
        assert all(type(row[key]) is int and row[key] > 0 for key in ("kv_bytes_per_token", "tokens_per_gib", "n_threads"))
        assert all(isinstance(row[key], (int, float)) and math.isfinite(row[key]) for key in ("ppl", "ppl_stderr", "kld_mean", "same_top"))
        assert row["saturated"] is None if row["format"].startswith("llama:") else type(row["saturated"]) is int
        for speeds in (row["prefill_tps"], row["decode_tps"]):
            assert list(speeds) == ([] if "F32" in row["model"] else ["0", "64"])
            assert all(speed > 0 for speed in speeds.values())
        assert row["ppl"] > 1 and row["ppl_stderr"] > 0 and 0 <= row["same_top"] <= 1 and row["n_threads"] == 1
    assert [row["format"] for row in rows[:12]] == FORMATS
    assert {row["text"] for row in rows} == {"built-in chronicle", "text, with \"quotes\".txt"}
    assert {row["k_scale_mode"] for row in rows} == {"none", "layer", "token", "block"}


def test_csv_has_the_numbers_of_json(saved):
    table = list(csv.DictReader(io.StringIO(saved[".csv"])))
    assert len(table) == len(saved["rows"])
    for line, row in zip(table, saved["rows"]):
        flat = {key: value for key, value in row.items() if not isinstance(value, dict)}
        for key in ("prefill_tps", "decode_tps"):
            flat |= {f"{key}_{depth}": row[key].get(depth) for depth in ("0", "64")}
        assert set(line) == set(flat)
        for key, value in flat.items():
            assert line[key] == "" if value is None else line[key] == value if isinstance(value, str) else float(line[key]) == value, key


def numbers(cell):
    return [float(number) for number in re.findall(r"[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?", cell)]


def test_markdown_and_text_have_the_numbers_of_json(saved):
    """Rounded for people: speeds to whole tokens, perplexity to 0.01, KL to two digits, the share to 0.1 %."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in saved[".md"].splitlines() if line.startswith("|")]
    table = lines[2:2 + len(FORMATS)]
    text = saved[".txt"].splitlines()[4:4 + len(FORMATS)]
    for cells, plain, row in zip(table, text, saved["rows"]):
        assert all(cell in plain for cell in cells[1:9])
        assert [numbers(cell) for cell in cells[1:3]] == [[row["kv_bytes_per_token"]], [row["tokens_per_gib"]]]
        assert numbers(cells[3]) == pytest.approx(list(row["prefill_tps"].values()), abs=0.6, rel=1e-5)
        assert numbers(cells[4]) == pytest.approx(list(row["decode_tps"].values()), abs=0.6, rel=1e-5)
        assert numbers(cells[5]) == pytest.approx([row["ppl"], row["ppl_stderr"]], abs=0.006)
        assert numbers(cells[6]) == pytest.approx([row["kld_mean"]], rel=0.05)
        assert numbers(cells[7]) == pytest.approx([100 * row["same_top"]], abs=0.06)
        assert cells[8] == ("–" if row["saturated"] is None else str(row["saturated"]))


def test_text_fits_the_terminal(saved):
    lines = saved[".txt"].splitlines()
    assert max(len(line) for line in lines[1:]) <= 120
    assert len(lines[0]) <= 100 + len("tiny.gguf") + len(json.loads(saved[".json"])[0]["cpu"])   # the names of a file and of a CPU have any length
    assert all(line == line.rstrip() for line in saved[".txt"].splitlines())


def test_numbers_mean_what_they_say(saved):
    """2 sides x 2 heads x 32 dims x 3 layers; every format's loss in its place; llama.cpp's f16 on F32 weights is ours."""
    by = {(row["format"], row["text"], "F32" in row["model"]): row for row in saved["rows"]}
    values = 2 * 2 * 32 * 3
    for name, size in {"f16": 2 * values, "bf16": 2 * values, "e4m3": values, "e5m2": values, "i8": values + 2 * 2 * 2 * 3, "f16/e4m3": 3 * values // 2,
                       "llama:f16": 2 * values, "llama:q8_0": values * 34 // 32}.items():
        row = by[name, "built-in chronicle", False]
        assert row["kv_bytes_per_token"] == size
        assert 2**30 - 16 * size < row["tokens_per_gib"] * size <= 2**30
    for text in ("built-in chronicle", "text, with \"quotes\".txt"):
        base = by["f16", text, True]
        assert base["kld_mean"] == 0 and base["same_top"] == 1
        kl = {name: by[name, text, True]["kld_mean"] for name in FORMATS}
        assert 0 <= kl["llama:f16"] < 1e-6 < kl["i8+rot/i8"] < kl["e4m3"] < kl["e5m2"]
        assert kl["bf16"] < kl["i8+rot/i8"] < kl["i8+rot/e4m3"]
        for name in FORMATS:
            row = by[name, text, True]
            assert abs(math.log(row["ppl"] / base["ppl"])) < 0.1


def test_depths_and_contexts(octavo, tiny):
    def depths(*more):
        rows = json.loads(octavo("compare", "-m", tiny, "--tokens", "0", "-n", "0", "--formats", "f16,llama:f16", "--rounds", "1", "--prefill-tokens", "16",
                                 "--decode-tokens", "4", "-o", "json", *more).out)
        assert all(row["ppl"] is None and row["text"] is None for row in rows)
        assert list(rows[0]["prefill_tps"]) == list(rows[1]["decode_tps"])
        return list(rows[0]["prefill_tps"])

    assert depths("--depths", "0,2048,8192") == ["0", "496"]      # 512 tokens of context less a prefill of 16
    assert depths("--depths", "300,0,300") == ["0", "300"]
    assert depths("--depths", "8192", "-c", "100") == ["84"]
    assert depths("--depths", "none") == []
    assert "too short" in octavo("compare", "-m", tiny, "-c", "20", "-n", "0", check=2).err


def test_windows(octavo, tiny_window):
    rows = json.loads(octavo("compare", "-m", tiny_window, "-o", "json", "-n", "0", "--tokens", "150", "--chunk", "150", "--depths", "0,200,400", "--rounds", "2",
                             "--prefill-tokens", "32", "--decode-tokens", "4").out)
    kl = {row["format"]: row["kld_mean"] for row in rows}
    assert kl["llama:f16"] < 1e-6 < kl["i8+rot/i8"] < kl["e4m3"]
    assert all(list(row["prefill_tps"]) == ["0", "200", "400"] for row in rows)


def test_f32_copies_are_kept_and_told_apart(octavo, tiny, tiny_chat, tmp_path):
    def copy(model):
        octavo("compare", "-m", model, "--quick", "--depths", "none", "-n", "0", "--formats", "f16", "--f32-weights", "--f32-dir", tmp_path)
        return {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}

    first = copy(tiny)
    assert len(first) == 1 and copy(tiny) == first
    assert len(copy(tiny_chat)) == 2
    octavo("compare", "-m", tiny, "--quick", "--depths", "none", "-n", "0", "--formats", "f16", "--f32-weights", "--f32-dir", tmp_path / "absent", check=1)


def test_texts_that_are_none(octavo, tiny, tmp_path):
    text = tmp_path / "short.txt"
    for content in (b"", b"a"):
        text.write_bytes(content)
        assert "short.txt" in octavo("compare", "-m", tiny, "-f", text, check=1).err
    text.write_bytes(b"abcdef")
    assert "short.txt" in octavo("compare", "-m", tiny, "-f", text, *QUICK, check=1).err, "too short to measure speed"
    octavo("compare", "-m", tiny, "-f", text, "--formats", "f16", "--depths", "none")
    assert "absent.txt" in octavo("compare", "-m", tiny, "-f", tmp_path / "absent.txt", check=1).err


def test_a_place_that_cannot_be_written_costs_the_others_nothing(octavo, tiny, tmp_path):
    good = tmp_path / "good.csv"
    result = octavo("compare", "-m", tiny, "--quick", "--depths", "none", "-n", "0", "--formats", "f16", "--save", tmp_path / "absent" / "x.md", "--save", good, "-o", "json", check=1)
    assert "absent/x.md" in result.err
    assert len(json.loads(result.out)) == 1 and good.read_text().startswith("format,")


def test_hostile_names_leave_a_report_readable(octavo, tiny, tmp_path):
    model, text = os.fsencode(tmp_path) + b"/ev\"il\\\n|\xff,\x1b[2J.gguf", os.fsencode(tmp_path) + b"/te\xffxt\x07"
    shutil.copy(tiny, model)
    with open(text, "wb") as file:
        file.write(b"Words enough for a judgement. " * 4)
    for form in ("text", "md", "csv", "json"):
        # conftest decodes strictly
        out = subprocess.run([octavo.path, "compare", "-m", model, "-f", text, "-t", "1", "--quick", "--depths", "none", "-n", "1", "-p", b"\xff\x1b\"", "--formats", "f16",
                              "-o", form], capture_output=True, check=True).stdout.decode("utf-8")
        assert not any(ord(character) < 32 and character not in "\n\t" for character in out)
        if form == "json":
            assert json.loads(out)[0]["model"] == "ev\"il\\\n|\ufffd,\x1b[2J.gguf"


def test_a_bar_on_a_terminal_and_only_there(octavo, tiny):
    reader, writer = pty.openpty()
    process = subprocess.Popen([octavo.path, "compare", "-m", tiny, *QUICK, "-t", "1", "-o", "json"], stdout=subprocess.PIPE, stderr=writer)
    os.close(writer)
    shown = b""
    while True:
        try:
            piece = os.read(reader, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    out = process.communicate()[0]
    os.close(reader)
    assert process.returncode == 0 and len(json.loads(out)) == len(FORMATS)
    assert b"[#" in shown and b"%" in shown and shown.endswith(b"\r\x1b[K"), "drawn, and erased at the end"


def test_ctrl_c_leaves_nothing(octavo, tiny_long, tmp_path):
    output = tmp_path / "report.json"
    process = subprocess.Popen([octavo.path, "compare", "-m", tiny_long, "--tokens", "100000", "-t", "1", "--output", output], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and out == b"" and not any(tmp_path.iterdir()), err
