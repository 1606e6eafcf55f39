"""octavo eval's tasks from outside: what was asked is saved and is what it says, answers are what NumPy makes of logits, verdicts are what exact arithmetic makes of answers; on a
file with quantised weights and on its F32 copy; every table has every cache."""
import fractions
import json
import math
import os
import re

import pytest

import tiny_gguf
from eval_rig import CLEAN, ITEMS, QUESTIONS, check_choices, check_recited, evaluate, items, logits_of   # noqa: F401 (fixtures)

MADE = ("needle", "recall", "copy", "lookup")
Z = 1.959963984540054


@pytest.fixture(scope="module")
def long_context(models):
    return tiny_gguf.write(models / "long-context.gguf", context=1536)


@pytest.fixture(scope="module")
def made(evaluate, long_context, tmp_path_factory):
    """The made tasks' items by task, and the result of a run."""
    file = tmp_path_factory.mktemp("made") / "items.jsonl"
    result = json.loads(evaluate("-m", long_context, "--tasks", ",".join(MADE), "--lengths", "600,900", "--kv-cache-dtype", "e4m3", "-o", "json", "--save-items", file).out)
    asked = {name: [] for name in MADE}
    for line in file.read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        assert item["scoring"] == "recite" and len(item["choices"]) == 1 and item["right"] == 0 and item["expected"] is None
        asked[item["task"]].append(item)
    return asked, {task["name"]: task for task in result["passes"][0]["tasks"]}


FACT = re.compile(r"The password of the ([a-z]+ [a-z]+) is (\d{5})\.")


def test_facts_lie_where_they_should(made):
    for name, n_facts in (("needle", 1), ("recall", 10)):
        asked, task = made[0][name], made[1][name]
        assert [item["id"] for item in asked] == [item["id"] for item in task["items"]] and len(asked) == {"needle": 6, "recall": 20}[name]
        for item, said in zip(asked, task["items"]):
            text, answer = item["context"]["text"], item["choices"][0]["text"]
            facts = FACT.findall(text)
            assert len(facts) == n_facts and len({who for who, _ in facts}) == n_facts
            who = re.search(r"\n\nThe password of the ([a-z ]+) is$", text).group(1)
            assert answer == " " + dict(facts)[who] and len(text.encode()) == len(item["context"]["tokens"]) == said["n_context_tokens"]
            # A sentence ends before a fact: at most 64 tokens ahead of the depth that was asked for.
            at = text.index(f"The password of the {who} is ") / said["length_tokens"]
            assert said["depth"] - 65 / said["length_tokens"] - 0.05 <= at <= said["depth"] + 0.05, (item["id"], at)


def test_lists_and_tables_hold_their_answers(made):
    for i, item in enumerate(made[0]["copy"]):
        words, begun = item["context"]["text"].split("\n")
        words = words.split(" ")
        assert len(words) == 3 + i // 2 and begun == " ".join(words[:2]) and item["choices"][0]["text"] == " " + " ".join(words[2:])
        assert all(re.fullmatch("([bdfgklmnprstvz][aeiou]){3}[bdfgklmnprstvz]", word) for word in words)
    names = set()
    for item in made[0]["lookup"]:
        *lines, _, last = item["context"]["text"].split("\n")
        table = dict(line.split(":") for line in lines)
        assert len(table) == 40 and item["choices"][0]["text"] == table[last.removesuffix(":")]
        names.add(last)
    assert len(names) == 20
    # Some of each side of the table: not only what was just read.
    assert len({item["depth"] for item in made[1]["lookup"]["items"]}) == 20


@pytest.mark.parametrize("task", MADE)
def test_recited_answers_are_the_likeliest_tokens(made, logits_of, long_context, task):
    for name, answers in zip(("f16", "e4m3"), made[1][task]["answers"]):
        check_recited(made[0][task][::2], answers[::2], logits_of, long_context, name)


# ---- statistics from answers -----------------------------------------------------------------------------------------------------------------


def wilson(k, n):
    middle, half = (k + Z * Z / 2) / (n + Z * Z), Z / (n + Z * Z) * math.sqrt(k * (n - k) / n + Z * Z / 4)
    return [middle - half, middle + half]


def mcnemar(lost, won):
    """Exact: whole numbers over 2^n."""
    n = lost + won
    return float(min(fractions.Fraction(1), 2 * sum(fractions.Fraction(math.comb(n, i), 2 ** n) for i in range(min(lost, won) + 1)))) if lost != won else 1.0


def holm(values):
    order, adjusted, least = sorted(range(len(values)), key=lambda i: values[i]), [0] * len(values), 0
    for rank, i in enumerate(order):
        least = max(least, min(1, (len(values) - rank) * values[i]))
        adjusted[i] = least
    return adjusted


def check_verdicts(result):
    for one in result["passes"]:
        tasks = [task for task in one["tasks"] if task["skipped"] is None]
        raw = []
        for task in tasks:
            n, base = len(task["items"]), task["answers"][0]
            for answers, said in zip(task["answers"], task["verdicts"]):
                right = sum(a["correct"] for a in answers)
                assert said["n_correct"] == right and said["accuracy"] == pytest.approx(right / n, rel=1e-5)
                assert said["accuracy_interval"] == pytest.approx(wilson(right, n), abs=1e-5)
                lost, won = (sum(b["correct"] == x and a["correct"] != x for a, b in zip(answers, base)) for x in (1, 0))
                assert (said["n_lost"], said["n_won"]) == (lost, won) and said["difference"] == pytest.approx((won - lost) / n, abs=1e-6)
                m, difference = n + 2, (won - lost) / (n + 2)
                half = Z * math.sqrt(lost + won + 1 - (won - lost) ** 2 / m) / m
                assert said["difference_interval"] == pytest.approx([max(-1, difference - half), min(1, difference + half)], abs=1e-5)
                changes = [a["score"] - b["score"] for a, b in zip(answers, base) if None not in (a["score"], b["score"])]
                assert said["n_unscored"] == n - len(changes)
                if changes:
                    assert said["score_change"] == pytest.approx(sum(changes) / len(changes), abs=2e-3), "six digits of each"
                if answers is base:
                    assert said["p_value"] is None
                else:
                    assert said["p_value"] == pytest.approx(mcnemar(lost, won), rel=1e-5)
                    raw.append((said, mcnemar(lost, won)))
        for (said, _), adjusted in zip(raw, holm([p for _, p in raw])):
            assert said["p_holm"] == pytest.approx(adjusted, rel=1e-5) and said["distinguishable"] == (adjusted < 0.05)


# ---- on the file and on its F32 copy ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both_weights(evaluate, items, models, tmp_path_factory):
    """All kinds of tasks on a file with quantised weights and on its copy: model, copy, result."""
    folder = tmp_path_factory.mktemp("copy")
    model = tiny_gguf.write(models / "quantized.gguf", quantized=True, context=1024)
    result = evaluate("-m", model, "--tasks", "tokens,greedy,hellaswag,truthfulqa,gsm8k,needle,copy,inside", "--data", items, "--tokens", "256", "--chunk", "128", "--lengths", "500", "--gsm8k-tokens", "8",
                      "--kv-cache-dtype", "e4m3,i8+rot/i8", "--quick", "--f32-weights", "--f32-dir", folder, "-o", "json")
    copy, = folder.glob("*.gguf")
    return model, copy, json.loads(result.out)


def test_tasks_on_the_copy_are_what_the_copy_answers(both_weights, logits_of):
    _, copy, result = both_weights
    assert result["complete"] and [one["is_f32"] for one in result["passes"]] == [False, True]
    plain, exact = ({task["name"]: task for task in one["tasks"]} for one in result["passes"])
    questions = [(f"Q: {row['question']}\nA:", [" " + choice for choice in row["choices"]]) for row in QUESTIONS]
    for index, name in enumerate(("f16", "e4m3", "i8+rot/i8")):
        check_choices("hellaswag", CLEAN, [row["expected_index"] for row in ITEMS], True, logits_of, copy, name, exact["hellaswag"]["answers"][index])
        check_choices("truthfulqa", questions, [0, 0], False, logits_of, copy, name, exact["truthfulqa"]["answers"][index])
    for name in ("hellaswag", "truthfulqa", "needle", "copy"):
        scores = [[a["score"] for a in task["answers"][0]] for task in (plain[name], exact[name])]
        assert scores[0] != scores[1] and scores[0] == pytest.approx(scores[1], rel=0.2, abs=0.5), "quantised products differ a little"
    assert [a["correct"] in (0, 1) for a in exact["gsm8k"]["answers"][2]] == [True, True]


def test_the_floor_is_lower_on_the_copy(both_weights, octavo):
    floors = [one["floor"]["kl"] for one in both_weights[2]["passes"]]
    assert floors[0] > 10 * floors[1] > 0
    assert all(one["inside"]["n_layers"] == 3 and one["greedy"]["n_prompts"] > 0 for one in both_weights[2]["passes"])


def test_verdicts_are_what_answers_make_of_them(both_weights, made, evaluate, long_context):
    check_verdicts(both_weights[2])
    check_verdicts({"passes": [{"tasks": list(made[1].values())}]})


# ---- real items, many caches ------------------------------------------------------------------------------------------------------------------


def test_real_items(evaluate, logits_of, models, root, tmp_path):
    """The items that tools/setup/tasks.sh fetches, cleaned as lm-evaluation-harness cleans them. They have no ctx_a and ctx_b, whose second part it would begin with a capital letter."""
    folder = os.path.join(root, "build", "tasks")
    if not os.path.exists(os.path.join(folder, "hellaswag.jsonl")):
        pytest.skip("octavo eval on real items: they are not there (tools/setup/tasks.sh)")
    model = tiny_gguf.write(models / "wide.gguf", context=2048)
    file = tmp_path / "items.jsonl"
    result = json.loads(evaluate("-m", model, "--tasks", "hellaswag,truthfulqa,gsm8k", "--data", folder, "--items", "40", "--gsm8k-items", "10", "--gsm8k-tokens", "1", "--kv-cache-dtype", "f16",
                                 "--save-items", file, "-o", "json").out)
    asked = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(asked) == 90 and [task["n_done"] for task in result["passes"][0]["tasks"]] == [[40], [40], [10]]
    with open(os.path.join(folder, "hellaswag.jsonl"), encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    assert not any("ctx_a" in row or "ctx_b" in row for row in rows) and sum(bool(re.search(r"[.!?]['\"]? [a-z][^.!?]*$", row["ctx"])) for row in rows) == 32, "as doc/EVAL.md says"

    def clean(text):
        text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
        return text.replace("  ", " ")
    for row, item in zip(rows[:40], asked):
        assert item["context"]["text"] == clean(f"{row['activity_label']}: {row['ctx']}") and item["right"] == row["expected_index"]
        assert [choice["text"] for choice in item["choices"]] == [" " + clean(ending) for ending in row["endings"]]
        assert [choice["characters"] for choice in item["choices"]] == [len(clean(ending)) for ending in row["endings"]]
    few = [(item["context"]["text"], [choice["text"] for choice in item["choices"]]) for item in asked[:3]]
    check_choices("hellaswag", few, [item["right"] for item in asked[:3]], True, logits_of, model, "f16", result["passes"][0]["tasks"][0]["answers"][0])


def test_every_table_has_every_cache(evaluate, long_context):
    names = "f32 bf16 e4m3 e4m3:layer e4m3:head e4m3:channel e4m3:token e5m2 e5m2:token i8 i8:channel i8+rot/i8 i8+rot/e4m3 f16/e4m3 f16/i8 i8+rot/f16".split()
    page = evaluate("-m", long_context, "--tasks", "tokens,needle", "--tokens", "64", "--chunk", "64", "--lengths", "500,506", "--no-floor", "--kv-cache-dtype", ",".join(names)).out
    tables = [[[cell.strip().replace("\\", "") for cell in line.strip("|").split("|")] for line in table.strip().split("\n")] for table in re.findall(r"(?:^\|.*\n)+", page, re.M)]
    labels = [row[0] for row in tables[0][2:]]
    assert len(labels) == len(names) + 1 and len(set(labels)) == len(labels)
    for first, columns in (("position", labels[1:]), ("length", labels)):
        heads = [table[0] for table in tables if table[0][0] == first]
        shown = [cell for head in heads for cell in head[2 if first == "position" else 3:]]
        assert shown == [label.removesuffix(" (base)") for label in columns], first
        assert all(len(row) == len(table[0]) for table in tables for row in table if table[0][0] == first)
