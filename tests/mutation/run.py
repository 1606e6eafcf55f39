#!/usr/bin/env python3
"""Plants the faults of mutations.toml in a copy of the sources, one at a time, and demands that the named test sees each.

usage: run.py --source ROOT --work DIR [--cc COMPILER] [--jobs N] [--only TEXT] [--patterns]

The copy and its build stay in DIR, so that a second run builds little. --only: the mutations whose names hold TEXT.
--patterns: only looks whether every edit still fits the sources. Exit status 1 when an edit does not fit, when a test fails on
the sources as they are, when a mutated tree does not build, or when a mutation survives.
"""
import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
import tomllib

# What the library and these two folders of tests are built from.
COPIED = ["CMakeLists.txt", "LICENSE", "README.md", "cmake", "include", "src", "tests/CMakeLists.txt", "tests/parity", "tests/faults"]
PROGRAMS = {"faults": "tests/faults/faults", "parity_attn": "tests/parity/parity_attn", "parity_attn_split": "tests/parity/parity_attn_split",
            "parity_attn_merge": "tests/parity/parity_attn_merge", "parity_kv_write": "tests/parity/parity_kv_write"}
TIMEOUT_SECONDS = 600


def files_under(path):
    if os.path.isfile(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names if not name.endswith(".pyc")]


def read(path):
    with open(path, "rb") as file:
        return file.read()


def copy_sources(source, tree):
    """Makes the copy equal to the sources; what is equal keeps its time, so that it is not built again."""
    wanted = set()
    for part in COPIED:
        for path in files_under(os.path.join(source, part)):
            relative = os.path.relpath(path, source)
            target = os.path.join(tree, relative)
            wanted.add(target)
            if not os.path.exists(target) or read(target) != read(path):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copyfile(path, target)
    for path in files_under(tree):
        if path not in wanted:
            os.unlink(path)


def edited(root, edits):
    """The mutated texts by path, and what does not fit."""
    texts, complaints = {}, []
    for edit in edits:
        path = edit["file"]
        if path not in texts:
            full = os.path.join(root, path)
            texts[path] = read(full).decode() if os.path.exists(full) else ""
        count = texts[path].count(edit["find"])
        if count != 1:
            complaints.append(f"{path}: found {count} times, must be once: {edit['find'].strip()!r}")
        texts[path] = texts[path].replace(edit["find"], edit["replace"])
    return texts, complaints


def run(command, log, timeout=None):
    """The exit status; a run beyond its time counts as failed."""
    try:
        return subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=timeout).returncode
    except subprocess.TimeoutExpired:
        log.write(f"no end within {timeout} s\n")
        return -1


class Bench:
    def __init__(self, options):
        self.source = os.path.abspath(options.source)
        self.tree = os.path.join(os.path.abspath(options.work), "tree")
        self.build_dir = os.path.join(os.path.abspath(options.work), "build")
        self.log_path = os.path.join(os.path.abspath(options.work), "log")
        self.jobs = str(options.jobs)
        self.compiler = options.cc
        os.makedirs(self.tree, exist_ok=True)

    def configure(self, log):
        # -O1: the test runs take about as long as the builds.
        return run(["cmake", "-S", self.tree, "-B", self.build_dir, "-G", "Ninja", "-DOCTAVO_ENGINE=OFF", "-DOCTAVO_WERROR=OFF",
                    "-DOCTAVO_TESTS=parity;faults", f"-DCMAKE_C_COMPILER={self.compiler}", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O1"], log)

    def build(self, test, log):
        return run(["cmake", "--build", self.build_dir, "-j", self.jobs, "--target", shlex.split(test)[0]], log)

    def test(self, test, log):
        program, *arguments = shlex.split(test)
        return run([os.path.join(self.build_dir, PROGRAMS[program]), *arguments], log, TIMEOUT_SECONDS)


def show_log(path):
    with open(path, encoding="utf-8", errors="replace") as log:
        print("".join(log.readlines()[-40:]), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--cc", default="gcc")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--only", default="")
    parser.add_argument("--patterns", action="store_true")
    options = parser.parse_args()

    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "mutations.toml"), "rb") as file:
        mutations = [m for m in tomllib.load(file)["mutation"] if options.only in m["name"]]
    misfits = [f"{m['name']}: {c}" for m in mutations for c in edited(options.source, m["edits"])[1]]
    for misfit in misfits:
        print(misfit)
    if misfits or not mutations:
        sys.exit(f"{len(misfits)} edits of {len(mutations)} mutations do not fit the sources")
    if options.patterns:
        print(f"{len(mutations)} mutations fit")
        return

    bench = Bench(options)
    copy_sources(bench.source, bench.tree)
    with open(bench.log_path, "w", encoding="utf-8") as log:
        if bench.configure(log) != 0:
            show_log(bench.log_path)
            sys.exit("configure failed")
    for test in sorted({m["test"] for m in mutations}):
        with open(bench.log_path, "w", encoding="utf-8") as log:
            passed = bench.build(test, log) == 0 and bench.test(test, log) == 0
        if not passed:
            show_log(bench.log_path)
            sys.exit(f"{test} fails on the sources as they are: it cannot judge a mutation")

    survivors = 0
    for mutation in mutations:
        begin = time.monotonic()
        texts, _ = edited(bench.tree, mutation["edits"])
        kept = {path: read(os.path.join(bench.tree, path)) for path in texts}
        for path, text in texts.items():
            with open(os.path.join(bench.tree, path), "w", encoding="utf-8") as file:
                file.write(text)
        with open(bench.log_path, "w", encoding="utf-8") as log:
            built = bench.build(mutation["test"], log) == 0
            killed = built and bench.test(mutation["test"], log) != 0
        for path, content in kept.items():
            with open(os.path.join(bench.tree, path), "wb") as file:
                file.write(content)
        if not built:
            show_log(bench.log_path)
        survivors += not killed
        print(f"{'killed' if killed else 'SURVIVED' if built else 'DOES NOT BUILD'}: {mutation['name']} ({mutation['test']}, {time.monotonic() - begin:.0f} s)", flush=True)
    print(f"{len(mutations) - survivors} of {len(mutations)} mutations killed")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
