"""octavo eval on tiny models: its numbers against NumPy over logits, libllama's among them; continuation after Ctrl-C; bad input. The tiny vocabulary is the
256 bytes in their order, without a BOS, so that tokens are bytes."""
import json
import math
import os
import random
import re
import resource
import signal
import subprocess
import time

import numpy
import pytest

import tiny_gguf
from eval_rig import CLEAN, ITEMS, N_VOCAB, PROBLEMS, QUESTIONS, check_choices, evaluate, items, log_softmax, logits_of   # noqa: F401 (fixtures)

TEXT = ("It was the best of days, it was the worst of nights; 34 bales of wool lay in the store, and 12 more were owed. " * 5)[:500]
FORMATS = ["f16", "e4m3", "i8+rot/i8"]

@pytest.fixture(scope="module")
def tokens_run(evaluate, tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("eval")
    text = folder / "text.txt"
    text.write_text(TEXT)
    evaluate("-m", tiny, "--tasks", "tokens,greedy", "-f", text, "--tokens", "500", "--chunk", "125", "--kv-cache-dtype", "e4m3,i8+rot/i8", "--save", folder / "r.json",
             "--save", folder / "r.md")
    return json.loads((folder / "r.json").read_text()), (folder / "r.md").read_text()


def test_token_level_is_what_numpy_computes_from_logits(tokens_run, logits_of, tiny):
    result, _ = tokens_run
    assert result["complete"] and [row["name"] for row in result["formats"]] == FORMATS
    text = result["passes"][0]["texts"][0]
    chunks = [list(TEXT[at:at + 125].encode()) for at in range(0, 500, 125)]
    target = numpy.concatenate([chunk[1:] for chunk in chunks])
    rows = {name: log_softmax(numpy.concatenate([rows[:-1] for rows in logits_of(tiny, name, chunks)])) for name in [*FORMATS, "llama:f16"]}
    assert text["n_tokens"] == text["n_done"] == len(target) == 496
    index = numpy.arange(len(target))
    base = rows["f16"]
    for name, said in zip(FORMATS, text["quality"]):
        own = rows[name]
        nll, change = -own[index, target], base[index, target] - own[index, target]
        kl, reverse = (numpy.exp(base) * (base - own)).sum(1), (numpy.exp(own) * (own - base)).sum(1)
        moved = numpy.exp(own[index, target]) - numpy.exp(base[index, target])
        assert said["ppl"] == pytest.approx(math.exp(nll.mean()), rel=1e-5)
        assert said["ppl_stderr"] == pytest.approx(math.exp(nll.mean()) * nll.std(ddof=1) / math.sqrt(len(nll)), rel=1e-5)
        assert said["ppl_ratio"] == pytest.approx(math.exp(change.mean()), abs=1e-5)
        for key, values in (("kl", kl), ("reverse_kl", reverse)):
            expected = {"mean": values.mean(), "p50": numpy.quantile(values, 0.5), "p90": numpy.quantile(values, 0.9), "p99": numpy.quantile(values, 0.99), "max": values.max()}
            assert {part: said[key][part] for part in expected} == pytest.approx(expected, rel=1e-3, abs=2e-9)
        assert said["same_top"] == pytest.approx((own.argmax(1) == base.argmax(1)).mean(), abs=1e-6)
        assert [said["moved"], said["moved_max"], said["moved_p99"], said["moved_signed"]] == pytest.approx(
            [abs(moved).mean(), abs(moved).max(), numpy.quantile(abs(moved), 0.99), moved.mean()], rel=1e-3, abs=1e-7)
        if name != "f16":
            low, high = said["kl"]["mean_interval"]
            assert low < said["kl"]["mean"] < high
            worst = numpy.argsort(-kl)[:20]
            assert [row["index"] for row in said["worst"]] == worst.tolist()
            assert [row["position"] for row in said["worst"]] == (worst % 124 + 1).tolist()
            first = said["worst"][0]
            assert first["token"].encode() == bytes([target[worst[0]]]) and first["p"] == pytest.approx(math.exp(own[worst[0], target[worst[0]]]), rel=1e-4)
            assert TEXT.find(first["before"] + first["token"]) >= 0
        # By position: 0-31, 32-63, 64-127.
        position = index % 124 + 1
        for said_bin, (low, high) in zip(said["positions"], ((0, 31), (32, 63), (64, 127))):
            within = (position >= low) & (position <= high)
            assert (said_bin["first"], said_bin["last"], said_bin["n_tokens"]) == (low, high, within.sum())
            assert said_bin["kl"] == pytest.approx(kl[within].mean(), rel=1e-3, abs=2e-9)
            assert said_bin["nll_change"] == pytest.approx(change[within].mean(), abs=1e-6)
    # libllama's own logits: the base's perplexity, the floor, and the divergence of e4m3 with libllama's f16 as the base.
    llama = rows["llama:f16"]
    assert text["quality"][0]["ppl"] == pytest.approx(math.exp(-llama[index, target].mean()), rel=1e-4)
    floor = result["passes"][0]["floor"]
    assert floor["measured"] and floor["kl"] == pytest.approx((numpy.exp(base) * (base - llama)).sum(1).mean(), rel=0.02, abs=2e-9) and floor["kl"] < 1e-5
    beyond = numpy.exp(base) * (base - rows["e4m3"]) - numpy.exp(base) * (base - llama)
    assert text["quality"][1]["beyond_floor"] == pytest.approx(beyond.sum(1).mean(), rel=1e-3) and text["quality"][0]["beyond_floor"] is None
    low, high = text["quality"][1]["beyond_floor_interval"]
    assert 0 < low < text["quality"][1]["beyond_floor"] < high
    from_llama = (numpy.exp(llama) * (llama - rows["e4m3"])).sum(1).mean()
    assert text["quality"][1]["kl"]["mean"] == pytest.approx(from_llama, rel=0.02)
    assert text["quality"][1]["kl"]["mean"] > 10 * floor["kl"], "the rest would be noise"


def test_the_floor_beside_bf16_is_of_bf16(evaluate, logits_of, tiny, tmp_path):
    """llama.cpp's f16 cache beside such a base would measure the two formats. Of two texts the first alone has a floor, and the report says so."""
    (tmp_path / "a.txt").write_text(TEXT[:200])
    (tmp_path / "b.txt").write_text(TEXT[200:400])
    evaluate("-m", tiny, "--tasks", "tokens", "-f", tmp_path / "a.txt", "-f", tmp_path / "b.txt", "--tokens", "200", "--chunk", "200", "--kv-cache-dtype", "bf16,e4m3", "--save", tmp_path / "r.json", "--save", tmp_path / "r.md",
             "--save", tmp_path / "r.html")
    one = json.loads((tmp_path / "r.json").read_text())["passes"][0]
    how = "llama.cpp's bf16 cache against ours, same weights and tokens of the first text; the others have no floor of their own"
    assert one["floor"]["measured"] and one["floor"]["how"] == how and how in (tmp_path / "r.md").read_text()
    assert (tmp_path / "r.html").read_text().count(">noise floor</text>") == 1, "in the picture of the first text"
    kls = {}
    for name in ("llama:bf16", "llama:f16"):
        base, own = (log_softmax(logits_of(tiny, cache, [list(TEXT[:200].encode())])[0][:-1]) for cache in ("bf16", name))
        kls[name] = (numpy.exp(base) * (base - own)).sum(1).mean()
    assert one["floor"]["kl"] == pytest.approx(kls["llama:bf16"], rel=0.02, abs=2e-9) and kls["llama:f16"] > 3 * kls["llama:bf16"]
    assert [text["quality"][1]["beyond_floor"] is None for text in one["texts"]] == [False, True]


def test_greedy_continuations_are_the_likeliest_tokens(tokens_run, logits_of, tiny):
    greedy = tokens_run[0]["passes"][0]["greedy"]
    n, length = greedy["n_prompts"], greedy["n_tokens"]
    assert n == 6 and length == 64 and greedy["first_different"][0] == [length] * n
    stride = (500 - 64) // n
    prompts = [list(TEXT[i * stride:i * stride + 64].encode()) for i in range(n)]
    said = {}
    for name in ("f16", "e4m3"):
        whole = [list(prompt) for prompt in prompts]
        for _ in range(8):      # the first few steps, as one step of the whole sequence each: nobody keeps a cache here
            for tokens, rows in zip(whole, logits_of(tiny, name, whole)):
                tokens.append(int(rows[-1].argmax()))
        said[name] = [tokens[64:] for tokens in whole]
    for i, first in enumerate(greedy["first_different"][1]):
        same = [a == b for a, b in zip(said["f16"][i], said["e4m3"][i])]
        assert min(first, 8) == (same.index(False) if False in same else 8)


def test_markdown_has_the_numbers_of_json(tokens_run):
    result, markdown = tokens_run
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines() if line.startswith("| e4m3")]
    said = result["passes"][0]["texts"][0]["quality"][1]
    assert lines[0][1] == str(result["formats"][1]["kv_bytes_per_token"])
    assert [float(x) for x in re.findall(r"[0-9.]+", lines[0][2])] == pytest.approx([said["ppl"], said["ppl_stderr"]], abs=0.006)
    assert float(lines[0][3]) == pytest.approx(said["kl"]["mean"], rel=0.05)
    wide = lines[1]
    assert float(wide[5]) == pytest.approx(said["kl"]["p99"], rel=0.05) and float(wide[9]) == pytest.approx(said["reverse_kl"]["max"], rel=0.05)
    more, = [line for line in lines if len(line) == 10]
    numbers = [[float(x) for x in re.findall(r"-?[0-9.]+(?:e[-+]?[0-9]+)?", cell)] for cell in more[1:]]
    kl, reverse = said["kl"], said["reverse_kl"]
    expected = [[kl["p50"]], [kl["p90"]], [reverse["mean"], *reverse["mean_interval"]], [reverse["p50"]], [reverse["p90"]], [100 * x for x in (said["same_top"], *said["same_top_interval"])],
                [said["moved_signed"]], [said["moved_max"]], [said["beyond_floor"], *said["beyond_floor_interval"]]]
    assert [len(cell) for cell in numbers] == [len(cell) for cell in expected]
    for shown, wanted in zip(numbers, expected):
        assert shown == pytest.approx(wanted, rel=0.051, abs=1e-12), more
    assert "Noise floor with the file's weights" in markdown and "The 20 tokens that e4m3, scale 1 changed most" in markdown


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_log_likelihoods_are_sums_over_the_logits(evaluate, logits_of, tiny, tiny_window, items, kind):
    """Shared contexts, groups and pages change nothing; with window layers neither."""
    model = tiny if kind == "llama" else tiny_window
    result = json.loads(evaluate("-m", model, "--tasks", "hellaswag,truthfulqa", "--data", items, "--kv-cache-dtype", "e4m3", "-o", "json").out)
    tasks = {task["name"]: task for task in result["passes"][0]["tasks"]}
    questions = [(f"Q: {row['question']}\nA:", [" " + choice for choice in row["choices"]]) for row in QUESTIONS]
    for format_index, name in enumerate(("f16", "e4m3")):
        check_choices("hellaswag", CLEAN, [row["expected_index"] for row in ITEMS], True, logits_of, model, name, tasks["hellaswag"]["answers"][format_index])
        check_choices("truthfulqa", questions, [0, 0], False, logits_of, model, name, tasks["truthfulqa"]["answers"][format_index])
    assert tasks["hellaswag"]["n_done"] == [3, 3] and tasks["hellaswag"]["chance"] == 0.25
    assert tasks["hellaswag"]["verdicts"][1]["n_correct"] == sum(a["correct"] for a in tasks["hellaswag"]["answers"][1])


def test_generated_answers_and_made_tasks(evaluate, logits_of, octavo, tiny, items):
    result = json.loads(evaluate("-m", tiny, "--tasks", "gsm8k,needle,recall,copy", "--data", items, "--kv-cache-dtype", "e4m3", "--gsm8k-tokens", "6", "--lengths", "500,506",
                                 "-o", "json", "--quick").out)
    tasks = {task["name"]: task for task in result["passes"][0]["tasks"]}
    # A greedy answer, a whole sequence at a time.
    for problem, answer in zip(PROBLEMS, tasks["gsm8k"]["answers"][0]):
        tokens = list(f"Question: {problem['prompt']}\nAnswer:".encode())
        n = len(tokens)
        for _ in range(6):
            tokens.append(int(logits_of(tiny, "f16", [tokens])[0][-1].argmax()))
        ends = [i for i, token in enumerate(tokens[n:]) if token >= 256] + [6]
        text = bytes(token for token in tokens[n:n + ends[0]]).decode("utf-8", "replace")
        numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
        assert answer["said"] == (numbers[-1] if numbers else None)
        assert answer["correct"] == (bool(numbers) and float(numbers[-1].replace(",", "")) == float(problem["expected"]))
    assert [item["length_tokens"] for item in tasks["needle"]["items"]] == [500] * 3 + [506] * 3
    assert all(item["n_context_tokens"] == item["length_tokens"] for item in tasks["needle"]["items"]), "exactly as long as asked for"
    lengths = [item["length_tokens"] - item["n_context_tokens"] for item in tasks["recall"]["items"]]
    assert min(lengths) == 0 and max(lengths) <= 8, "as long as the longest question makes it"
    assert {(cell["length_tokens"], cell["n_items"]) for cell in tasks["recall"]["cells"]} == {(500, 1), (506, 1)} and len(tasks["recall"]["cells"]) == 20
    for name in ("needle", "recall", "copy"):
        for row in tasks[name]["answers"]:
            assert all(answer["correct"] in (0, 1) and answer["score"] < 0 for answer in row)
    again = json.loads(evaluate("-m", tiny, "--tasks", "needle", "--kv-cache-dtype", "e4m3", "--lengths", "500,506", "-o", "json", "--seed", "2").out)
    assert again["passes"][0]["tasks"][0]["answers"] != tasks["needle"]["answers"], "another seed, other items"


def same_numbers(result):
    return {key: value for key, value in result.items() if key != "provenance"}


def test_an_interrupted_run_goes_on_where_it_was(evaluate, tiny, items, tmp_path, request):
    arguments = ["-m", tiny, "--tasks", "tokens,hellaswag,copy", "--data", items, "--kv-cache-dtype", "e4m3", "--chunk", "256", "--no-floor", "-t", "1", "--tokens", "6000"]
    partial, report = tmp_path / "p.partial", tmp_path / "report.json"
    command = [os.path.abspath(request.config.getoption("--octavo")), "eval", *map(str, arguments), "--keep-every", "0", "--partial", str(partial), "--save", str(report)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not partial.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130 and f"kept in {partial}" in said.decode(), said
    assert partial.exists() and not report.exists()
    head = partial.read_bytes()
    done = json.loads(head[head.index(b"\n\n"):])["passes"][0]["texts"][0]
    assert 0 < done["n_done"] < done["n_tokens"], "stopped within"

    # Another evaluation does not go on with it, and leaves it alone.
    other = evaluate(*[word if word != "6000" else "3000" for word in arguments], "--partial", partial, check=1)
    assert "another evaluation" in other.err and partial.read_bytes() == head
    # Nor does anybody with a damaged one.
    partial.write_bytes(head[:-9] + b"7" + head[-8:])
    assert "damaged" in evaluate(*arguments, "--partial", partial, check=1).err
    # Nor with one whose checksum is right, but whose numbers would be indices of nothing.
    for place, wrong in (("tokens", [0, 0, 0, N_VOCAB]), ("positions", 7000)):
        forged = json.loads(head[head.index(b"\n\n"):])
        forged["passes"][0]["texts"][0][place][0] = [wrong] * len(forged["passes"][0]["texts"][0]["tokens"][0]) if place == "tokens" else wrong
        body = head[head.index(b"\n") + 1:head.index(b"\n\n") + 2] + json.dumps(forged).encode()
        total = 0xcbf29ce484222325
        for byte in body:
            total = (total ^ byte) * 0x100000001b3 & 0xffffffffffffffff
        partial.write_bytes(b"octavo eval partial 3 %016x\n" % total + body)
        assert "not of this evaluation's shape" in evaluate(*arguments, "--partial", partial, check=1).err
    partial.write_bytes(head)

    evaluate(*arguments, "--partial", partial, "--save", report)
    assert not partial.exists(), "a finished one is gone"
    continued = json.loads(report.read_text())
    assert continued["provenance"]["n_resumed"] == 1
    whole = json.loads(evaluate(*arguments, "-o", "json").out)
    assert same_numbers(continued) == same_numbers(whole)


def test_a_killed_run_goes_on_where_it_was(evaluate, tiny, items, tmp_path, request):
    """Killed at moments of chance, a few times one behind the other: what is left is whole, and the end is what an uninterrupted run gives."""
    arguments = ["-m", tiny, "--tasks", "tokens,greedy,hellaswag,truthfulqa,gsm8k,needle,copy,inside", "--data", items, "--kv-cache-dtype", "e4m3", "--chunk", "128", "--no-floor", "-t", "1", "--tokens", "2000",
                 "--lengths", "500", "--gsm8k-tokens", "32"]
    partial, report = tmp_path / "p.partial", tmp_path / "report.json"
    command = [os.path.abspath(request.config.getoption("--octavo")), "eval", *map(str, arguments), "--keep-every", "0", "--partial", str(partial), "--save", str(report)]
    begun = time.monotonic()
    whole = json.loads(evaluate(*arguments, "-o", "json").out)
    lasts, seed = time.monotonic() - begun, int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(4):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            assert process.wait(timeout=chance.uniform(0.1, 0.9) * lasts) == 0
            break
        except subprocess.TimeoutExpired:
            process.kill()
            if process.wait() == 0:      # it ended just then
                break
        # A report may be there already, and is whole: the blow fell between its renaming and the end of the process.
        assert not report.exists() or same_numbers(json.loads(report.read_text())) == same_numbers(whole)
    else:
        evaluate(*arguments, "--partial", partial, "--save", report)
    assert not partial.exists() and same_numbers(json.loads(report.read_text())) == same_numbers(whole)


def test_a_text_from_a_pipe(evaluate, tiny, tmp_path):
    """Read once: the second time there would be nothing left of it."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    arguments = ["-m", tiny, "--tasks", "tokens", "--tokens", "64", "--chunk", "64", "--no-floor", "-o", "json"]
    with subprocess.Popen(["cat", text], stdout=subprocess.PIPE) as cat:
        piped = json.loads(evaluate(*arguments, "-f", f"/dev/fd/{cat.stdout.fileno()}", pass_fds=[cat.stdout.fileno()]).out)
    plain = json.loads(evaluate(*arguments, "-f", text).out)
    assert piped["passes"][0]["texts"][0]["quality"] == plain["passes"][0]["texts"][0]["quality"]


@pytest.mark.parametrize("room", [2000, 16000])
def test_a_full_disk_costs_the_partial_result_alone(evaluate, tiny, tmp_path, room):
    """What can't be kept is said, once; the report comes all the same. Files may have so many bytes here, as on a disk that fills up: for nothing, or for some."""
    partial = tmp_path / "p.partial"
    done = evaluate("-m", tiny, "--tasks", "tokens", "--tokens", "256", "--chunk", "32", "--no-floor", "--kv-cache-dtype", "e4m3", "--keep-every", "0", "--partial", partial, restore_signals=False,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)))
    assert done.err.count("from here on nothing is kept") == 1 and "too large" in done.err and "perplexity" in done.out
    assert list(tmp_path.iterdir()) == [], "nor is half of one left, or an old one"


def test_without_a_cache_folder_nothing_is_kept_and_that_is_said(octavo, tiny):
    done = octavo("eval", "-m", tiny, "--tasks", "tokens", "--tokens", "32", "--chunk", "32", "--no-floor", env=os.environ | {"XDG_CACHE_HOME": "/dev/null/nowhere"})
    assert "no cache folder to keep an unfinished evaluation" in done.err and "perplexity" in done.out


def test_f32_weights_are_a_second_pass(evaluate, tiny, tmp_path):
    result = json.loads(evaluate("-m", tiny, "--tasks", "tokens", "--tokens", "200", "--chunk", "100", "--kv-cache-dtype", "e4m3", "--f32-weights", "--f32-dir", tmp_path,
                                 "-o", "json").out)
    plain, copy = result["passes"]
    assert (plain["is_f32"], copy["is_f32"]) == (False, True)
    assert copy["texts"][0]["quality"][1]["kl"]["mean"] == pytest.approx(plain["texts"][0]["quality"][1]["kl"]["mean"], rel=1e-3), "the tiny model's weights are F32 already"


def test_a_copy_without_room_is_said_before_the_work(evaluate, tiny, tmp_path):
    (tmp_path / "kept").mkdir()
    partial = tmp_path / "p.partial"
    done = evaluate("-m", tiny, "--tasks", "tokens", "--tokens", "64", "--chunk", "32", "--no-floor", "--keep-every", "0", "--partial", partial, "--f32-weights", "--f32-dir", tmp_path / "kept", check=1,
                    restore_signals=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000)))
    assert "the f32 copy" in done.err and done.out == "" and list((tmp_path / "kept").iterdir()) == []
    text = partial.read_text()
    assert json.loads(text[text.index("\n\n"):])["passes"][0]["texts"][0]["n_done"] == 0, "nothing was judged yet"


@pytest.mark.parametrize("arguments, code, words", [
    (["--tasks", "poetry"], 2, "'poetry' is none of"),
    (["--tasks", "copy,copy"], 2, "given twice"),
    (["--kv-cache-dtype", "f16,e9m9"], 2, "--kv-cache-dtype"),
    (["--kv-cache-dtype", "e4m3,llama:q8_0"], 2, "llama.cpp's"),
    (["--lengths", "12"], 2, "--lengths: 12"),
    (["--tasks", "recall", "--lengths", "256"], 2, "10 facts need a text of more than"),
    (["--tasks", "recall", "--lengths", "4096"], 2, "a text of 4096 tokens needs a longer context than 512"),
    (["--tasks", "hellaswag", "--data", "/nowhere"], 1, "tools/setup/tasks.sh"),
    (["--tasks", "tokens", "-f", "EMPTY"], 1, "empty"),
    (["--tasks", "tokens", "-f", "LATIN"], 1, "not UTF-8"),
    (["--tasks", "tokens", "-f", "MISSING"], 1, "No such file"),
    (["--tasks", "tokens", "--output", "MISSING/report.md"], 1, "cannot be written"),
    (["--tasks", "tokens", "--save", "report.pdf"], 2, "report.pdf"),
    (["--tasks", "tokens", "--output", "r.md", "--partial", "./r.md"], 2, "--output and --partial are both"),
    (["--tasks", "tokens", "--save", "r.md", "--output", "EMPTY/../r.md"], 1, "cannot be written"),
    (["--tasks", "tokens", "--save", "r.md", "--output", "BROKEN/../r.md"], 2, "--save and --output are both"),
    (["--tasks", "tokens", "-f", "notes.md", "--save", "BROKEN/../notes.md"], 2, "--file and --save are both"),
    (["--tasks", "tokens", "-f", "notes.md", "--save", "link.md"], 2, "--file and --save are both"),
    (["--tasks", "hellaswag", "--data", "BROKEN", "--save-items", "BROKEN/hellaswag.jsonl"], 2, "--save-items 'BROKEN/hellaswag.jsonl' is the list of --data that hellaswag reads"),
    (["--tasks", "copy", "--data", "./BROKEN/", "--partial", "BROKEN/gsm8k.jsonl"], 2, "--partial 'BROKEN/gsm8k.jsonl' is the list of --data that gsm8k reads"),
    (["--tasks", "copy", "--partial", "LATIN"], 1, "no partial result"),
    (["--tasks", "copy", "--partial", "/dev/full"], 1, "it is no file"),
    (["--tasks", "hellaswag", "--data", "BROKEN"], 1, "line 2"),
    (["--tasks", "gsm8k", "--data", "BROKEN"], 1, "'expected' holds no number"),
    (["--tasks", "truthfulqa", "--data", "BROKEN"], 1, "\ufffd[31m\ufffd: an item"),
])
def test_bad_input_is_named(octavo, tiny, tmp_path, items, arguments, code, words):
    (tmp_path / "EMPTY").write_bytes(b"")
    (tmp_path / "LATIN").write_bytes("Käse und Brot".encode("latin-1"))
    (tmp_path / "BROKEN").mkdir()
    (tmp_path / "notes.md").write_text(TEXT)
    (tmp_path / "link.md").symlink_to("notes.md")
    (tmp_path / "BROKEN" / "hellaswag.jsonl").write_text(json.dumps(ITEMS[0]) + "\n{\n")
    (tmp_path / "BROKEN" / "gsm8k.jsonl").write_text(json.dumps({"id": "g", "prompt": "2 + 2?", "expected": "four"}))
    (tmp_path / "BROKEN" / "truthfulqa.jsonl").write_text(json.dumps({"id": "\x1b[31m\x9b", "question": "?"}))
    result = octavo("eval", "-m", os.path.abspath(tiny), *([] if "--partial" in arguments else ["--partial", "none"]), *arguments, check=code, cwd=tmp_path)
    assert words in result.err and result.out == "" and "\x1b" not in result.err and "\x9b" not in result.err
    assert len(result.err.strip().splitlines()) <= 2
    assert (tmp_path / "notes.md").read_text() == TEXT and not (tmp_path / "r.md").exists()


@pytest.mark.parametrize("task", ["tokens", "greedy", "inside"])
def test_a_context_of_one_token(evaluate, tmp_path, task):
    model = tiny_gguf.write(tmp_path / "one.gguf", context=1, add_bos=True)
    assert "nothing stands before a token" in evaluate("-m", model, "--tasks", task, "--no-floor", check=1).err


def times_v(factor):
    def edit(tensors):
        tensors["blk.1.attn_v.weight"] *= numpy.float32(factor)
    return edit


@pytest.mark.parametrize("task", ["tokens", "copy", "inside"])
def test_a_base_without_numbers_is_no_base(evaluate, tmp_path, task):
    model = tiny_gguf.write(tmp_path / "large.gguf", edit=times_v(1e6))      # infinite in f16
    assert "not all numbers" in evaluate("-m", model, "--tasks", task, "--no-floor", "--tokens", "64", "--kv-cache-dtype", "e4m3", check=1).err
    result = json.loads(evaluate("-m", model, "--tasks", task, "--no-floor", "--tokens", "64", "--kv-cache-dtype", "bf16,e4m3:token", "-o", "json").out)
    assert result["complete"]


def test_a_layer_without_v_is_no_finding(evaluate, tmp_path):
    model = tiny_gguf.write(tmp_path / "zero.gguf", edit=times_v(0))
    inside = json.loads(evaluate("-m", model, "--tasks", "inside", "--no-floor", "--tokens", "64", "--kv-cache-dtype", "e4m3", "-o", "json").out)["passes"][0]["inside"]
    assert [finding for finding in inside["findings"] if finding["part"] in ("attention", "V") and finding["layer"] == 1] == []


@pytest.mark.parametrize("n", [0, 2, 9])
def test_so_many_caches_are_taken_layer_by_layer(evaluate, tiny, n):
    inside = json.loads(evaluate("-m", tiny, "--tasks", "inside", "--no-floor", "--tokens", "64", "--quick", "--kv-cache-dtype", "e4m3,i8", "--sensitivity", n, "-o", "json").out)["passes"][0]["inside"]
    assert [s["format"] for s in inside["sensitivities"]] == [1, 2][:n] and all(len(s["alone"]) == 3 for s in inside["sensitivities"]) and inside["n_findings_more"] == 0


def test_names_of_files_are_no_markup(evaluate, tiny, tmp_path):
    text = tmp_path / "<b>_a_[x](y)\u202e&amp;.txt"
    text.write_text(TEXT)
    page = evaluate("-m", tiny, "--tasks", "tokens", "--no-floor", "-f", text, "--tokens", "64", "--chunk", "64").out
    head, = [line for line in page.splitlines() if line.startswith("### ")]
    assert r"'\<b>\_a\_[x\](y)[U+202E]\&amp;.txt'" in head and "\u202e" not in page


def test_what_cannot_be_run_is_said_when_all_was_asked(evaluate, tmp_path_factory):
    model = tiny_gguf.write(tmp_path_factory.mktemp("short") / "short.gguf", context=96)
    result = json.loads(evaluate("-m", model, "--data", "/nowhere", "--tokens", "192", "--chunk", "64", "--no-floor", "--kv-cache-dtype", "e4m3", "--quick", "-o", "json").out)
    skipped = {task["name"]: task["skipped"] for task in result["passes"][0]["tasks"]}
    assert "tools/setup/tasks.sh" in skipped["gsm8k"] and "needs a longer context than 96" in skipped["recall"] and result["complete"]
    assert result["passes"][0]["inside"]["n_layers"] == 3
