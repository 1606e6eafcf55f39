#!/usr/bin/env python3
"""Plants the faults of mutations.toml in a copy of the sources and demands that the named test sees each.

usage: run.py --source ROOT --work DIR [--cc COMPILER] [--jobs N] [--only TEXT]

Faults that are expressions are switched at run time: the copy holds (oct__mutant == n ? fault : original), one build serves them all, and
each is a run with OCTAVO_MUTANT=n; without it, the same build must pass. Faults whose places overlap, and changes of text, get
builds of their own. Tests stop at the first case that fails. The copy and its build stay in DIR, so that a second run builds little.
--only: the mutations whose names hold TEXT. Exit status 1 when an edit does not fit, when a test fails on the sources as they are,
when a mutated tree does not build, or when a mutation survives; a test that does not end in its time has not seen it.
Where kernels of a device are judged, a failure's lines are searched for a kernel's name, and the count of those that have one is printed; for the faults of KINDS one is demanded.
"""
import argparse
import concurrent.futures
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib

# What the library and these folders of tests are built from.
COPIED = ["CMakeLists.txt", "LICENSE", "README.md", "cmake", "include", "src", "tests/CMakeLists.txt", "tests/test_pattern.h", "tests/parity", "tests/faults", "tests/device"]
PROGRAMS = {"faults": "tests/faults/faults", "parity_attn": "tests/parity/parity_attn", "parity_attn_split": "tests/parity/parity_attn_split",
            "parity_attn_merge": "tests/parity/parity_attn_merge", "parity_kv_write": "tests/parity/parity_kv_write",
            "device_attn": "tests/device/device_attn", "device_one": "tests/device/device_one", "device_tile": "tests/device/device_tile",
            "device_attn_merge": "tests/device/device_attn_merge",
            "device_attn_sm90a": "tests/device/device_attn_sm90a", "device_extend_sm90a": "tests/device/device_extend_sm90a",
            "device_kv_write": "tests/device/device_kv_write", "device_plan": "tests/device/device_plan"}
TIMEOUT_SECONDS = 600
# Of a device's kernels: removed barriers, bounds of pages, swapped scales, divergent shuffles; their failures must name a kernel. (Missing waits are
# amdsim_kernels', which demands it too.)
KINDS = re.compile(r"no barrier|a page one key|scale|a shuffle|a vote")
OPEN, CLOSE = "⟦", "⟧"

# Before every source. Declares what it needs itself: a header here would come before the sources' feature macros.
SWITCH = """\
#if !defined(__ASSEMBLER__)
__attribute__((weak)) int oct__mutant;
extern char *getenv(const char *);
__attribute__((constructor)) static void oct__mutant_read(void)
{
    const char *text = getenv("OCTAVO_MUTANT");
    int value = 0;
    for (; text && *text >= '0' && *text <= '9'; text++)
        value = 10 * value + (*text - '0');
    oct__mutant = value;
}
#endif
"""


def files_under(path):
    if os.path.isfile(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names if not name.endswith(".pyc")]


def read(path):
    with open(path, "rb") as file:
        return file.read()


def write(path, content):
    """What is equal keeps its time, so that it is not built again."""
    if not os.path.exists(path) or read(path) != content:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)


class Place:
    """Where an edit stands in its file: the whole of `find`, and in it the part that is replaced."""

    def __init__(self, root, edit):
        self.path, self.replace = edit["file"], edit["replace"]
        before, bracket, rest = edit["find"].partition(OPEN)
        inner, _, after = rest.partition(CLOSE) if bracket else (before, "", "")
        before = before if bracket else ""
        full = os.path.join(root, self.path)
        text = read(full).decode() if os.path.exists(full) else ""
        find = before + inner + after
        count = text.count(find)
        self.complaint = None if count == 1 else f"{self.path}: found {count} times, must be once: {find.strip()!r}"
        self.is_switched = bool(bracket)
        self.begin = text.find(find) + len(before)
        self.end = self.begin + len(inner)


def batches_of(mutations):
    """Lists of mutations that one build can hold. Equal expressions nest; places that overlap otherwise do not."""
    batches = []
    for mutation in mutations:
        places = mutation["places"]
        if not all(place.is_switched for place in places):
            batches.append([mutation])
            continue
        for batch in batches:
            others = [other for one in batch for other in one["places"]]
            if all(other.is_switched for other in others) and not any(
                    a.path == b.path and a.begin < b.end and b.begin < a.end and (a.begin, a.end) != (b.begin, b.end) for a in places for b in others):
                batch.append(mutation)
                break
        else:
            batches.append([mutation])
    return batches


def planted(root, batch):
    """The texts of the files that the batch changes."""
    spans = {}
    for mutation in batch:
        for place in mutation["places"]:
            spans.setdefault(place.path, {}).setdefault((place.begin, place.end), []).append((mutation["number"], place))
    texts = {}
    for path, by_span in spans.items():
        text = read(os.path.join(root, path)).decode()
        for (begin, end), wanted in sorted(by_span.items(), reverse=True):
            now = text[begin:end]
            for number, place in wanted:
                now = f"(oct__mutant == {number} ? ({place.replace}) : ({now}))" if place.is_switched else place.replace
            text = text[:begin] + now + text[end:]
        texts[path] = text.encode()
    return texts


class Bench:
    def __init__(self, options):
        self.source, work = os.path.abspath(options.source), os.path.abspath(options.work)
        self.tree, self.build_dir, self.logs = os.path.join(work, "tree"), os.path.join(work, "build"), os.path.join(work, "logs")
        self.jobs, self.compiler = options.jobs, options.cc
        self.named = []   # of each killed fault of a device's kernel: the kernel that the failure names, or None
        self.switch = os.path.join(work, "switch.h")
        tables = "".join(read(os.path.join(self.source, path)).decode() for path in ("src/device/kernels.def", "src/cuda/kernels_sm90a.def"))
        self.kernels = re.compile(r"\b(?:" + "|".join(re.findall(r"^X\((\w+)", tables, re.M)) + r")\b")
        os.makedirs(self.logs, exist_ok=True)
        write(self.switch, SWITCH.encode())

    def plant(self, batch):
        """The copy becomes the sources with the batch's faults in them."""
        texts, wanted = planted(self.source, batch), set()
        for part in COPIED:
            for path in files_under(os.path.join(self.source, part)):
                relative = os.path.relpath(path, self.source)
                wanted.add(os.path.join(self.tree, relative))
                write(os.path.join(self.tree, relative), texts.get(relative) or read(path))
        for path in files_under(self.tree):
            if path not in wanted:
                os.unlink(path)

    def call(self, command, log, **how):
        """The exit status; None for a run that has not ended in its time."""
        with open(os.path.join(self.logs, log), "w", encoding="utf-8") as out:
            try:
                return subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, **how).returncode
            except subprocess.TimeoutExpired:
                out.write("no end in time\n")
                return None

    def configure(self):
        # -O1: the test runs take about as long as the builds.
        return self.call(["cmake", "-S", self.tree, "-B", self.build_dir, "-G", "Ninja", "-DOCTAVO_ENGINE=OFF", "-DOCTAVO_WERROR=OFF", "-DOCTAVO_DEVICE=OFF",
                          "-DOCTAVO_TESTS=parity;faults;device", f"-DCMAKE_C_COMPILER={self.compiler}", "-DCMAKE_BUILD_TYPE=Debug",
                          f"-DCMAKE_C_FLAGS_DEBUG=-O1 -w -include {self.switch} -DISOLATE_STOP"], "configure") == 0

    def build(self, programs):
        return self.call(["cmake", "--build", self.build_dir, "-j", str(self.jobs), "--target", *sorted(programs)], "build") == 0

    def test(self, test, number):
        program, *arguments = shlex.split(test)
        environment = {name: value for name, value in os.environ.items() if name != "OCTAVO_MUTANT"}
        if number:
            environment["OCTAVO_MUTANT"] = str(number)
        return self.call([os.path.join(self.build_dir, PROGRAMS[program]), *arguments], self.log_of(test, number), timeout=TIMEOUT_SECONDS, env=environment)

    def kernel_of(self, test, number):
        """A kernel that the run's failures name; the lines that tell what was judged without one do not count."""
        with open(os.path.join(self.logs, self.log_of(test, number)), encoding="utf-8", errors="replace") as text:
            for line in text:
                found = None if " judged on " in line else self.kernels.search(line)
                if found:
                    return found[0]
        return None

    @staticmethod
    def log_of(test, number):
        return f"run-{number}-" + "".join(c if c.isalnum() else "-" for c in test)

    def show(self, log):
        with open(os.path.join(self.logs, log), encoding="utf-8", errors="replace") as text:
            print("".join(text.readlines()[-40:]), flush=True)


def run_batch(bench, batch, judged):
    """Builds a batch and runs its mutations. Returns the names of those that survived. judged: tests that passed without a fault."""
    bench.plant(batch)
    programs = {shlex.split(mutation["test"])[0] for mutation in batch}
    if not bench.build(programs):
        bench.show("build")
        print("DOES NOT BUILD: " + ", ".join(mutation["name"] for mutation in batch), flush=True)
        return [mutation["name"] for mutation in batch]
    is_switched = all(place.is_switched for mutation in batch for place in mutation["places"])
    with concurrent.futures.ThreadPoolExecutor(bench.jobs) as pool:
        if is_switched:
            tests = sorted({mutation["test"] for mutation in batch} - judged)
            for test, status in zip(tests, pool.map(lambda test: bench.test(test, 0), tests)):
                if status != 0:
                    bench.show(bench.log_of(test, 0))
                    sys.exit(f"{test} fails on the sources as they are: it cannot judge a mutation")
            judged.update(tests)

        def judge(mutation):
            begin = time.monotonic()
            status = bench.test(mutation["test"], mutation["number"])
            says = "NO END IN TIME" if status is None else "SURVIVED" if status == 0 else "killed"
            if says == "killed" and mutation["test"].startswith("device_"):
                kernel = bench.kernel_of(mutation["test"], mutation["number"])
                bench.named.append(kernel)
                says = f"killed, names {kernel}" if kernel else "killed, names no kernel"
                if kernel is None and KINDS.search(mutation["name"]):
                    says = "NAMES NO KERNEL"
            print(f"{says}: {mutation['name']} ({mutation['test']}, {time.monotonic() - begin:.0f} s)", flush=True)
            return says.startswith("killed")

        return [mutation["name"] for mutation, killed in zip(batch, pool.map(judge, batch)) if not killed]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--cc", default="gcc")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--only", default="")
    options = parser.parse_args()

    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "mutations.toml"), "rb") as file:
        mutations = [m for m in tomllib.load(file)["mutation"] if options.only in m["name"]]
    for number, mutation in enumerate(mutations, 1):
        mutation["number"] = number
        mutation["places"] = [Place(options.source, edit) for edit in mutation["edits"]]
    misfits = [f"{m['name']}: {place.complaint}" for m in mutations for place in m["places"] if place.complaint]
    for misfit in misfits:
        print(misfit)
    if misfits or not mutations:
        sys.exit(f"{len(misfits)} edits of {len(mutations)} mutations do not fit the sources")

    bench = Bench(options)
    bench.plant([])
    if not bench.configure():
        bench.show("configure")
        sys.exit("configure failed")
    batches, judged, survivors = batches_of(mutations), set(), []
    # A change of text is judged by a test that has passed on the sources as they are.
    plain = {m["test"] for batch in batches for m in batch if not all(place.is_switched for place in m["places"])}
    plain -= {m["test"] for batch in batches for m in batch if all(place.is_switched for place in m["places"])}
    if plain:
        bench.build({shlex.split(test)[0] for test in plain})
        for test in sorted(plain):
            if bench.test(test, 0) != 0:
                bench.show(bench.log_of(test, 0))
                sys.exit(f"{test} fails on the sources as they are: it cannot judge a mutation")
    for batch in batches:
        survivors += run_batch(bench, batch, judged)
    print(f"{sum(kernel is not None for kernel in bench.named)} of {len(bench.named)} failures over kernels of a device name one")
    print(f"{len(mutations) - len(survivors)} of {len(mutations)} mutations killed, {len(batches)} builds")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
