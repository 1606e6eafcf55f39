"""The default model: it answers, and its caches rank as doc/NUMERICS.md says."""
import json

from eval_rig import check_recited, evaluate, logits_of   # noqa: F401 (fixtures)


def test_it_knows_a_capital(octavo, smollm2):
    for name in ("f16", "fp8", "int8_rotated"):
        text = octavo("run", "-m", smollm2, "-p", "Which city is the capital of France? Answer with its name.", "-n", "16", "--temp", "0", "--kv-cache-dtype", name).out
        assert "Paris" in text, (name, text)


def test_compare_quick(octavo, smollm2, root):
    rows = json.loads(octavo("compare", "-m", smollm2, "--quick", "-o", "json", "--f32-weights", "--f32-dir", f"{root}/build/models", timeout=1500).out)
    f32 = {row["format"]: row for row in rows if "F32" in row["model"]}
    as_is = {row["format"]: row for row in rows if "F32" not in row["model"]}
    assert len(f32) == len(as_is) == 12
    kl = {name: row["kld_mean"] for name, row in f32.items()}
    assert kl["llama:f16"] < 1e-5, "one mathematics in both engines"
    assert kl["i8+rot/i8"] < kl["i8"] < kl["e4m3"] < kl["e5m2"]
    assert kl["i8+rot/i8"] < kl["e4m3"] / 5
    assert as_is["f16"]["kv_bytes_per_token"] == 30 * 2 * 3 * 64 * 2
    assert as_is["e4m3"]["kv_bytes_per_token"] * 2 == as_is["f16"]["kv_bytes_per_token"]
    for row in as_is.values():
        assert row["prefill_tps"]["0"] > 1 and row["decode_tps"]["0"] > 1


def test_lists_are_recited_as_its_logits_say(evaluate, logits_of, smollm2, tmp_path):
    """Right and wrong ones, against NumPy over the logits: short lists it can copy. Its weights of 4 bits are multiplied by activations of 8 (ggml), which turn with a last bit of
    attention: where rows of few and of many vectors round apart, logits of steps of 1 to 40 tokens were up to 0.8 apart, the likely ones by less; a score of the wrong token is nats off."""
    file = tmp_path / "items.jsonl"
    result = json.loads(evaluate("-m", smollm2, "--tasks", "copy", "--kv-cache-dtype", "f16", "-o", "json", "--save-items", file).out)
    asked, answers = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()], result["passes"][0]["tasks"][0]["answers"][0]
    right = [i for i, answer in enumerate(answers) if answer["correct"]]
    wrong = [i for i, answer in enumerate(answers) if not answer["correct"]]
    assert right and wrong
    some = right[:4] + wrong[:4]
    assert check_recited([asked[i] for i in some], [answers[i] for i in some], logits_of, smollm2, "f16", noise=0.1) == len(right[:4])
