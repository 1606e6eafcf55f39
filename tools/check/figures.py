#!/usr/bin/env python3
"""The demo's published figures are what the program gives: doc/figures/demo.json against a run on the same model.

usage: figures.py OCTAVO MODEL_DIRECTORY
Memory must agree exactly, for every format. Quality is measured again for three formats on the built-in text and must lie
in a band: another CPU sums in another order, and with quantised weights a last bit moves whole activation steps. Speed is
the machine's and is not judged. Exit 77 (skipped) while no figures are published.
"""
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FIGURES = os.path.join(ROOT, "doc", "figures", "demo.json")
AGAIN = ["f16", "e4m3", "i8+rot/i8"]


def compare(octavo, model, *flags):
    command = [octavo, "compare", "-m", model, "--depths", "none", "-n", "0", "-o", "json", *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with status {done.returncode}:\n{done.stderr}")
    return {row["format"]: row for row in json.loads(done.stdout)}


def main():
    octavo, models = sys.argv[1:]
    if not os.path.exists(FIGURES):
        print("no doc/figures/demo.json yet: make demo, then make figures")
        sys.exit(77)
    with open(FIGURES, encoding="utf-8") as file:
        rows = json.load(file)
    # The quantised file itself, on the built-in text; the F32 copy is another model name.
    names = {row["model"] for row in rows if os.path.exists(os.path.join(models, row["model"]))}
    published = {row["format"]: row for row in rows if row["model"] in names and row["text"].startswith("built-in")}
    if len(names) != 1 or not set(AGAIN) <= published.keys():
        sys.exit(f"{FIGURES} lacks rows: models {sorted(names)}, formats {sorted(published)}")
    model = os.path.join(models, names.pop())

    complaints = []
    memory = compare(octavo, model, "--tokens", "0", "--formats", ",".join(published))
    for name, row in published.items():
        for key in ("kv_bytes_per_token", "tokens_per_gib"):
            if row[key] != memory[name][key]:
                complaints.append(f"{name}: {key} is published as {row[key]}, the program says {memory[name][key]}")
    quality = compare(octavo, model, "--formats", ",".join(AGAIN))
    for name in AGAIN:
        for key, relative, absolute in (("ppl", 0.02, 0.0), ("kld_mean", 0.3, 2e-3), ("same_top", 0.0, 0.02)):
            was, is_now = published[name][key], quality[name][key]
            if abs(was - is_now) > absolute + relative * abs(was):
                complaints.append(f"{name}: {key} is published as {was}, the program says {is_now}")
        if published[name]["saturated"] != quality[name]["saturated"]:
            complaints.append(f"{name}: saturated is published as {published[name]['saturated']}, the program says {quality[name]['saturated']}")
    for line in complaints:
        print(line)
    print(f"figures: {len(published)} formats, {len(complaints)} complaints")
    sys.exit(1 if complaints else 0)


main()
