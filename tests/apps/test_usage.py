"""The command line itself: what is refused, with which exit code and words; help; output that cannot be written."""
import os
import resource
import signal

import pytest

import tiny_gguf

COMMANDS = ["compare", "run", "explain", "calibrate", "export-hf", "export-scales", "machine", "tune", "serve"]

# What is typed ("MODEL" is the tiny model) and what the message must name. Exit code 2.
WRONG = [
    ([], "usage"),
    (["dance"], "dance"),
    (["help", "dance"], "dance"),
    (["version", "now"], "now"),
    *[([command, "--frobnicate"], "--frobnicate") for command in COMMANDS],
    *[([command, "stray"], "stray") for command in COMMANDS],
    *[([command], "-m") for command in COMMANDS if command not in ("machine", "tune", "export-scales")],
    (["export-scales"], "--kv-scales"),
    (["export-scales", "--kv-scales", "x.json"], "-o"),
    (["export-scales", "--kv-scales", "x.json", "-o", "y.json", "--tp", "0"], "--tp"),
    (["bench"], "attn"),
    (["machine", "-o", "xml"], "xml"),
    (["machine", "-o"], "-o"),
    (["tune", "-o", "xml"], "xml"),
    (["tune", "--seconds", "0"], "--seconds"),
    (["tune", "--seconds", "61"], "--seconds"),
    (["tune", "-t", "513"], "-t"),
    (["run", "-m"], "-m"),
    (["run", "-m", "MODEL"], "-p"),
    (["run", "-m", "MODEL", "-p", "a", "-f", "b"], "-f"),
    (["run", "-m", "MODEL", "-p", "a", "--chat", "--no-chat"], "--no-chat"),
    (["run", "-m", "MODEL", "-p", "a", "--chat=yes"], "--chat"),
    (["run", "-m", "MODEL", "-p", "a", "-n", "abc"], "abc"),
    (["run", "-m", "MODEL", "-p", "a", "-n", "0"], "-n"),
    (["run", "-m", "MODEL", "-p", "a", "-n", "-1"], "-1"),
    (["run", "-m", "MODEL", "-p", "a", "-n", "99999999999999999999999"], "-n"),
    (["run", "-m", "MODEL", "-p", "a", "-n", "4x"], "4x"),
    (["run", "-m", "MODEL", "-p", "a", "-t", "513"], "-t"),
    (["compare", "-m", "MODEL", "--f32-dir", ""], "--f32-dir"),
    (["run", "-m", "MODEL", "-p", "a", "--temp", "nan"], "--temp"),
    (["run", "-m", "MODEL", "-p", "a", "--temp", "-1"], "--temp"),
    (["run", "-m", "MODEL", "-p", "a", "--temp", "inf"], "--temp"),
    (["run", "-m", "MODEL", "-p", "a", "--temp", ""], "--temp"),
    (["run", "-m", "MODEL", "-p", "a", "--top-p", "1.5"], "--top-p"),
    (["run", "-m", "MODEL", "-p", "a", "--min-p=-0.1"], "--min-p"),
    (["run", "-m", "MODEL", "-p", "a", "--seed", "4294967296"], "--seed"),
    (["run", "-m", "MODEL", "-p", "a", "--block-size", "0"], "--block-size"),
    (["run", "-m", "MODEL", "-p", "a", "--block-size", "1025"], "--block-size"),
    (["run", "-m", "MODEL", "-p", "a", "--kv-cache-dtype", "fp7"], "fp7"),
    (["run", "-m", "MODEL", "-p", "a", "--kv-layout", "dhn"], "dhn"),
    (["run", "-m", "MODEL", "-p", "a", "-ctk", "q4_0"], "q4_0"),
    (["run", "-m", "MODEL", "-p", "a", "-ctv", "i8:layer"], "i8:layer"),
    (["run", "-m", "MODEL", "-p", "a", "-ctk", "e4m3:layer"], "--kv-scales"),
    (["run", "-m", "MODEL", "-p", "a", "-ctv", "e5m2:head"], "--kv-scales"),
    (["run", "-m", "MODEL", "-p", "a", "--k-scale", "2"], "--k-scale"),
    (["run", "-m", "MODEL", "-p", "a", "--kv-cache-dtype", "fp8", "--k-scale", "0"], "--k-scale"),
    (["run", "-m", "MODEL", "-p", "a", "--kv-cache-dtype", "fp8", "--v-scale", "-2"], "--v-scale"),
    (["run", "-m", "MODEL", "-p", "a", "--kv-cache-dtype", "fp8", "--v-scale", "nan"], "--v-scale"),
    (["run", "-m", "MODEL", "-p", "a", "--kv-cache-dtype", "fp8", "--v-scale", "1.1e30"], "1.1e30"),
    (["run", "-m", "MODEL", "-p", "a", "-c", "513"], "513"),
    (["run", "-m", "MODEL", "-p", "a", "-c", "500", "--pool-tokens", "64"], "longer than the pool"),
    (["run", "-m", "MODEL", "-p", "a" * 600], "600 tokens"),
    (["run", "-m", "MODEL", "-p", "a" * 64, "-c", "64"], "context holds 64"),
    (["run", "-m", "MODEL", "-p", "a", "--force-variant", "attn_decode.warp"], "warp"),
    (["run", "-m", "MODEL", "-p", "a", "--deny-variant", "attn_decode.warp"], "warp"),
    (["explain", "-m", "MODEL", "--force", "nothing"], "nothing"),
    (["compare", "-m", "MODEL", "--formats", "f16,bogus"], "bogus"),
    (["compare", "-m", "MODEL", "--formats", "f16,llama:q2"], "q2"),
    (["compare", "-m", "MODEL", "--formats", "llama:f16,f16"], "llama:f16"),
    (["compare", "-m", "MODEL", "--formats", "f16,f16"], "twice"),
    (["compare", "-m", "MODEL", "--formats", ""], "--formats"),
    (["compare", "-m", "MODEL", "--formats", "f16,"], "--formats"),
    (["compare", "-m", "MODEL", "--formats", ",".join(["f16/e4m3"] * 30)], "--formats"),
    (["compare", "-m", "MODEL", "--depths", "0,x"], "0,x"),
    (["compare", "-m", "MODEL", "--depths", "0,,5"], "0,,5"),
    (["compare", "-m", "MODEL", "--depths", "1,2,3,4,5,6,7,8,9"], "--depths"),
    (["compare", "-m", "MODEL", "--save", "report.pdf"], "report.pdf"),
    (["compare", "-m", "MODEL", "-o", "yaml"], "yaml"),
    (["compare", "-m", "MODEL", "-c", "600"], "600"),
    (["compare", "-m", "MODEL", "-p", "a" * 600], "600 tokens"),
    (["compare", "-m", "MODEL", *["-f", "x"] * 17], "-f"),
    (["calibrate", "-m", "MODEL"], "-o"),
    (["export-hf", "-m", "MODEL"], "-o"),
    (["export-hf", "-m", "MODEL", "-o", "x", "--dtype", "q8_0"], "q8_0"),
    (["calibrate", "-m", "MODEL", "-o", "x.json", "--dtype", "fp8_e5m2"], "fp8_e5m2"),
    (["calibrate", "-m", "MODEL", "-o", "x.json", "--tp", "0"], "--tp"),
]


@pytest.mark.parametrize("typed, named", WRONG, ids=[" ".join(typed)[:60] or "nothing" for typed, _ in WRONG])
def test_what_is_typed_wrong_is_named(octavo, tiny, typed, named):
    result = octavo(*[tiny if word == "MODEL" else word for word in typed], check=2, threads=False)
    assert named in result.err
    assert result.out == ""


def test_help_and_version(octavo):
    overview = octavo("help").out
    assert octavo("--help").out == overview and octavo("-h").out == overview
    for command in COMMANDS:
        assert f"  {command} " in overview
        text = octavo("help", command).out
        assert octavo(command, "--help").out == text and octavo(command, *(["-m", "x"] if command not in ("machine", "tune", "export-scales") else []), "-h").out == text
        assert all(len(line) <= 120 for line in text.splitlines())
    assert octavo("version").out == octavo("--version").out
    assert octavo("version").out.startswith("octavo 0.")


def test_every_flag_of_the_issue_is_there(octavo):
    text = octavo("help", "run").out
    for flag in ["-m", "-p", "-n", "-ctk", "-ctv", "--kv-cache-dtype", "--block-size", "-c", "-t", "--temp", "--top-k", "--top-p", "--min-p", "--seed", "--ignore-eos"]:
        assert f"{flag}, " in text or f" {flag}\n" in text or f"{flag} " in text, flag
    for name in "auto bf16 f16 fp8 fp8_e4m3 fp8_e5m2 fp8_e4m3fnuz fp8_per_token_head int8_per_token_head int8_rotated int8_v4".split():
        assert name in text


# ---- models that are none ----------------------------------------------------------------------------------------------


def spoil_truncated(data):
    return data[: len(data) // 2]


def spoil_header_only(data):
    return data[:20]


def spoil_empty(data):
    return b""


def spoil_foreign(data):
    return b"\x7fELF" + data[4:]


def spoil_tensor_count(data):
    return data[:8] + (2**60).to_bytes(8, "little") + data[16:]


def spoil_key_count(data):
    return data[:16] + (2**63).to_bytes(8, "little") + data[24:]


def spoil_version(data):
    return data[:4] + (99).to_bytes(4, "little") + data[8:]


SPOILS = [spoil_truncated, spoil_header_only, spoil_empty, spoil_foreign, spoil_tensor_count, spoil_key_count, spoil_version]


@pytest.mark.parametrize("spoil", SPOILS, ids=[spoil.__name__[6:] for spoil in SPOILS])
@pytest.mark.parametrize("command", ["run", "compare", "explain", "calibrate"])
def test_a_broken_model_is_named(octavo, tiny, tmp_path, command, spoil):
    broken, output = tmp_path / "broken.gguf", tmp_path / "out.json"
    broken.write_bytes(spoil(tiny.read_bytes()))
    more = {"run": ["-p", "a"], "compare": ["--output", output], "explain": ["--output", output], "calibrate": ["-o", output]}[command]
    result = octavo(command, "-m", broken, *more, check=1)
    assert "broken.gguf" in result.err and result.out == ""
    assert not output.exists() and [path.name for path in tmp_path.iterdir()] == ["broken.gguf"]


@pytest.mark.parametrize("command, more", [("run", ["-p", "a"]), ("compare", []), ("explain", []), ("calibrate", ["-o", "/dev/null"])])
def test_a_missing_model_or_a_folder_is_named(octavo, tmp_path, command, more):
    assert "absent.gguf" in octavo(command, "-m", tmp_path / "absent.gguf", *more, check=1).err
    assert str(tmp_path) in octavo(command, "-m", tmp_path, *more, check=1).err


@pytest.mark.parametrize("changed, named", [
    ({"heads": 4, "heads_kv": 3}, "head_count_kv"),
    ({"dim": 20}, "key_length"),
    ({"architecture": "mamba"}, "mamba"),
], ids=["heads do not divide", "head dim", "architecture"])
def test_a_model_that_cannot_run_names_its_key(octavo, tmp_path, changed, named):
    model = tiny_gguf.write(tmp_path / "odd.gguf", **changed)
    result = octavo("run", "-m", model, "-p", "a", "-n", "2", check=1)
    assert named in result.err and "odd.gguf" in result.err


# ---- output that cannot be written ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("typed", [["machine"], ["help"], ["version"], ["explain", "-m", "MODEL"], ["run", "-m", "MODEL", "-p", "a", "-n", "8", "--ignore-eos"],
                                   ["compare", "-m", "MODEL", "--quick", "--formats", "f16", "-n", "0"]], ids=lambda typed: typed[0])
def test_a_full_disk_on_standard_output(octavo, tiny, typed):
    with open("/dev/full", "wb") as full:
        result = octavo(*[tiny if word == "MODEL" else word for word in typed], check=1, capture_output=False, stdout=full, stderr=-1)
    assert "standard output" in result.err and "No space left" in result.err


@pytest.mark.parametrize("typed", [["machine", "--output"], ["explain", "-m", "MODEL", "--output"], ["calibrate", "-m", "MODEL", "--tokens", "32", "-o"],
                                   ["compare", "-m", "MODEL", "--quick", "--formats", "f16", "-n", "0", "--output"]], ids=lambda typed: typed[0])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(octavo, tiny, tmp_path, typed):
    typed = [tiny if word == "MODEL" else word for word in typed]
    assert "/dev/full" in octavo(*typed, "/dev/full", check=1).err
    old = tmp_path / "old.json"
    old.write_text("old")

    def no_room():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))

    result = octavo(*typed, old, check=1, preexec_fn=no_room)
    assert "old.json" in result.err
    assert old.read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["old.json"]
    assert "absent" in octavo(*typed, tmp_path / "absent" / "x.json", check=1).err


def test_more_threads_than_cores_are_told(octavo, tiny):
    usable = len(os.sched_getaffinity(0))
    told = octavo("run", "-m", tiny, "-p", "a", "-n", 1, "-t", usable + 1, threads=False)
    assert f"{usable + 1} threads on {usable}" in told.err
    assert "threads on" not in octavo("run", "-m", tiny, "-p", "a", "-n", 1, "-t", 1, threads=False).err
