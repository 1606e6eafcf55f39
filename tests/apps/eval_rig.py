"""What the tests of octavo eval share: runs that keep nothing, logits under a cache, small sets of items and the scoring of choices by NumPy."""
import json
import subprocess

import numpy
import pytest

N_VOCAB = 259


@pytest.fixture(scope="module")
def evaluate(octavo):
    """JSON of a run that keeps nothing unless told where."""
    def run(*arguments, **how):
        kept = () if "--partial" in arguments else ("--partial", "none")
        return octavo("eval", *arguments, *kept, **how)
    return run


@pytest.fixture(scope="module")
def logits_of(request):
    """Logits in f64 of lists of tokens under a cache."""
    program = request.config.getoption("--eval-logits")

    def run(model, name, sequences):
        stdin = b"".join(numpy.array([len(tokens), *tokens], numpy.int32).tobytes() for tokens in sequences)
        done = subprocess.run([program, model, name], input=stdin, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr.decode()
        ends = numpy.cumsum([len(tokens) for tokens in sequences])
        flat = numpy.frombuffer(done.stdout, numpy.float32).reshape(ends[-1], -1).astype(numpy.float64)
        return [flat[end - len(tokens):end] for tokens, end in zip(sequences, ends)]
    return run


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - numpy.log(numpy.exp(shifted).sum(axis=-1, keepdims=True))


ITEMS = [
    {"id": "h-1", "activity_label": "Paint", "ctx": "A man [title] paints.  he", "endings": ["sits [step] down.", "runs away fast.", "sings", "is a wall"], "expected_index": 1},
    {"id": "h-2", "activity_label": "Swim", "ctx": "They swim. they", "endings": ["dive", "drink all of the water", "fly", "go"], "expected_index": 0},
    {"id": "h-3", "activity_label": "Cook", "ctx": "She cooks", "endings": ["soup", "a stone", "crème brûlée", "bread and butter"], "expected_index": 3},
]
CLEAN = [("Paint: A man. paints. he", [" sits down.", " runs away fast.", " sings", " is a wall"]), ("Swim: They swim. they", [" dive", " drink all of the water", " fly", " go"]),
         ("Cook: She cooks", [" soup", " a stone", " crème brûlée", " bread and butter"])]
QUESTIONS = [{"id": "t-1", "question": "Is it?", "choices": ["Yes.", "No, it never was.", "Maybe so"], "expected_index": 0},
             {"id": "t-2", "question": "Who?", "choices": ["Nobody.", "A king"], "expected_index": 0}]
PROBLEMS = [{"id": "g-1", "prompt": "1 + 1?", "expected": "2"}, {"id": "g-2", "prompt": "What is 3 times 4?", "expected": "12"}]


@pytest.fixture(scope="module")
def items(tmp_path_factory):
    folder = tmp_path_factory.mktemp("items")
    for name, rows in (("hellaswag", ITEMS), ("truthfulqa", QUESTIONS), ("gsm8k", PROBLEMS)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def check_choices(task, asked, rights, by_character, logits_of, model, name, answers):
    """Sums of log-probabilities, a whole text at a time, without anything shared; by characters as lm-evaluation-harness does it: the blank before a choice is none of its own."""
    for (context, choices), right, answer in zip(asked, rights, answers):
        n = len(context.encode())
        texts = [list((context + choice).encode()) for choice in choices]
        sums = []
        for tokens, choice, rows in zip(texts, choices, logits_of(model, name, texts)):
            own = log_softmax(rows)
            sums.append(sum(own[i - 1, tokens[i]] for i in range(n, len(tokens))) / (len(choice[1:]) if by_character else 1))
        best = int(numpy.argmax(sums))
        assert answer["choice"] == best and answer["correct"] == (best == right), (task, name, sums)
        assert answer["score"] == pytest.approx(sums[right] - max(s for i, s in enumerate(sums) if i != right), rel=1e-3, abs=1e-4)


def check_recited(asked, answers, logits_of, model, name, noise=1e-4):
    """Whether each token of the answer is the likeliest, and the sum of their log-probabilities, from one step over the whole text. noise: what a step of another shape, or
    another CPU's kernels, may change a logit by."""
    n_right = 0
    for item, answer, rows in zip(asked, answers, logits_of(model, name, [item["context"]["tokens"] + item["choices"][0]["tokens"] for item in asked])):
        n, target = len(item["context"]["tokens"]), numpy.array(item["choices"][0]["tokens"])
        own = log_softmax(rows)[n - 1:-1]
        at_target = own[numpy.arange(len(target)), target]
        others = own.copy()
        others[numpy.arange(len(target)), target] = -numpy.inf
        ahead = at_target - others.max(axis=1)
        assert answer["score"] == pytest.approx(at_target.sum(), rel=1e-4, abs=10 * noise), (name, item["id"])
        if (ahead < -noise).any() or (ahead > noise).all():   # a near tie may be decided otherwise
            assert answer["correct"] == (ahead > 0).all(), (name, item["id"])
        n_right += answer["correct"]
    return n_right
