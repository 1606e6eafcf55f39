#!/usr/bin/env python3
"""Everything that must hold before a change lands; `make check` and `make check-fast` call it.

usage: check.py [--fast | --engines]

Set-up, then one line a stage: the release build with every test, the clang build and the sanitized build with the fast
tests, the rooms with threads under the thread sanitizer, the fuzz targets. --fast: the release build with the fast tests only. --engines: everything, and then the suites of
`make check-engines`, in 25 minutes and within 85 of the whole. Counts come from the JUnit files of ctest, in build/check; skipped tests are named; the last line is the sum.
"""
import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

import engines
from tally import Tally

# Of the suites on real engines, which are fetched anew on CI's machine; CI ends a run of 90.
ENGINES_MINUTES, ALL_MINUTES = 25, 85

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LOGS = os.path.join(ROOT, "build", "check")
JOBS = str(os.cpu_count() or 2)

BUILDS = {
    "release": ["-DCMAKE_C_COMPILER=gcc", "-DCMAKE_BUILD_TYPE=Release", "-DOCTAVO_PYTHON_PACKAGE=ON",
                "-DPython_EXECUTABLE=" + os.path.join(ROOT, "build", "venv", "bin", "python")],
    "clang": ["-DCMAKE_C_COMPILER=clang-14", "-DCMAKE_BUILD_TYPE=Release"],
    # Tests and fuzz targets share one instrumented build: it is the longest, and two would double it.
    "sanitize": ["-DCMAKE_C_COMPILER=clang-14", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DOCTAVO_SANITIZE=address,undefined", "-DOCTAVO_FUZZ=ON"],
    # The library's threads, and the server's over models of one thread: ggml's are not instrumented, and their barriers would be taken for races.
    "threads": ["-DCMAKE_C_COMPILER=clang-14", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DOCTAVO_SANITIZE=thread", "-DOCTAVO_TESTS=host;api;cpu;serve"],
}

# With it and the AMD compiler, which set-up fetches, the release build compiles and embeds the code of every chip.
NVCC = shutil.which("nvcc") or next((path for path in ["/usr/local/cuda/bin/nvcc"] if os.access(path, os.X_OK)), None)

# Skips that happen inside one program: cmocka's own line, and pytest's with -rs.
INNER_SKIP = re.compile(r"^\[  SKIPPED \] (?!\d+ test)(.+?)\s*$|^SKIPPED \[\d+\] (.+?)\s*$", re.M)


def run(tally, name, command, quiet=True, optional=False):
    """One command into a log; its failure counts as one failed test, of an optional one the caller says what it means. True when it went well."""
    log = os.path.join(LOGS, name.replace("/", "-") + ".log")
    begin = time.monotonic()
    with open(log, "w", encoding="utf-8") as out:
        if quiet:
            status = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode
        else:
            status = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL).returncode
    seconds = time.monotonic() - begin
    tally.stages.append((name, seconds))
    if status != 0 and not optional:
        tally.failed.append(name)
        with open(log, encoding="utf-8", errors="replace") as text:
            sys.stdout.writelines(text.readlines()[-60:])
        print(f"FAILED {name}: {' '.join(command)} (status {status}; log: {os.path.relpath(log, ROOT)})", flush=True)
    return status == 0


class Beside:
    """A command that runs beside the stages, in a log of its own; ending it waits for it, until a moment of time.monotonic() where there is one. A failure counts as one failed
    test, success with `counts` as one passed; one that ends with the status `away`, or not in time, is a skip with the last line that it printed. One with `away` has a process
    group of its own, which ends with this program."""

    def __init__(self, name, command, counts=False, away=None):
        self.name, self.command, self.counts, self.away = name, command, counts, away
        self.log = os.path.join(LOGS, name.replace("/", "-") + ".log")
        with open(self.log, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=away is not None)
        if away is not None:
            atexit.register(lambda: self.process.poll() is None and self.stop())

    def stop(self):
        """Ends what has `away`, and what it has started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self, tally, until=None):
        """True when it went well."""
        before, when = time.monotonic(), ""
        try:
            status = self.process.wait(None if until is None else max(0, until - before))
        except subprocess.TimeoutExpired:
            status, when = self.away, "it was not done in time; its last line: "
            self.stop()
        tally.stages.append((self.name + " (waited for)", time.monotonic() - before))
        if status == 0:
            tally.passed += self.counts
            print(f"{self.name}: well", flush=True)
            return True
        with open(self.log, encoding="utf-8", errors="replace") as text:
            lines = text.readlines()
        if status is not None and status == self.away:
            tally.skipped.append(f"{self.name}: {when}{lines[-1].strip() if lines else 'it printed nothing'}")
            print(tally.skipped[-1], flush=True)
            return False
        tally.failed.append(self.name)
        sys.stdout.writelines(lines[-60:])
        print(f"FAILED {self.name}: {' '.join(self.command)} (status {status}; log: {os.path.relpath(self.log, ROOT)})", flush=True)
        return False


def build(tally, name):
    directory = os.path.join("build", name)
    configured = run(tally, f"{name}/configure", ["cmake", "-S", ".", "-B", directory, "-G", "Ninja", "-DOCTAVO_ENGINE=ON", "-DOCTAVO_WERROR=ON", *BUILDS[name]])
    if not configured or not run(tally, f"{name}/build", ["cmake", "--build", directory, "-j", JOBS]):
        return False
    print(f"{name}: built in {sum(seconds for stage, seconds in tally.stages if stage.startswith(name + '/')):.0f} s", flush=True)
    return True


def ctest(tally, name, label=None, jobs=JOBS, leave_out=None):
    """Runs the tests of one build (of one label, without those whose names match leave_out) and adds them up. A build without such tests is a failure."""
    stage = f"{name}/{label or 'all'}"
    junit = os.path.join(LOGS, stage.replace("/", "-") + ".xml")
    if os.path.exists(junit):
        os.unlink(junit)
    command = ["ctest", "--test-dir", os.path.join("build", name), "-j", jobs, "--output-on-failure", "--no-tests=error",
               "--output-junit", junit, "--test-output-size-passed", "1000000"]
    if label:
        command += ["-L", f"^{label}$"]
    if leave_out:
        command += ["-E", leave_out]
    log = os.path.join(LOGS, stage.replace("/", "-") + ".log")
    begin = time.monotonic()
    with open(log, "w", encoding="utf-8") as out:
        status = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode
    seconds = time.monotonic() - begin
    tally.stages.append((stage, seconds))

    passed = failed = skipped = 0
    cases = ElementTree.parse(junit).getroot().findall("testcase") if os.path.exists(junit) else []
    for case in cases:
        title = f"{name}/{case.get('name')}"
        output = case.findtext("system-out") or ""
        mark = case.find("skipped")
        if mark is not None and "SKIP_RETURN_CODE" in mark.get("message", ""):
            reason = next((line for line in reversed(output.splitlines()) if line.strip()), "no reason printed")
            skipped += 1
            tally.skipped.append(f"{title}: {reason}")
        elif case.get("status") == "run":
            passed += 1
            tally.executed.add(case.get("name"), output)
        else:
            # Also a test that could not start, which ctest calls "notrun": a missing program is no skip.
            failed += 1
            tally.failed.append(title)
            print(f"---- {title}\n" + "\n".join(output.splitlines()[-40:]), flush=True)
        for match in INNER_SKIP.finditer(output):
            skipped += 1
            tally.skipped.append(f"{title}: {match.group(1) or match.group(2)}")
    if status != 0 and failed == 0:
        failed += 1
        tally.failed.append(f"{stage}: ctest ended with status {status}, see {os.path.relpath(log, ROOT)}")
    tally.passed += passed
    print(f"{stage}: {passed} tests passed, {failed} failed, {skipped} skipped in {seconds:.0f} s", flush=True)


def engines_begin(tally):
    """The Pythons with the engines, whose making is the network's and the disk's work for the most part, beside the stages. None, and a named skip, where they are not there yet and
    have no room."""
    os.makedirs(os.path.join(ROOT, "build"), exist_ok=True)
    free_gb = shutil.disk_usage(os.path.join(ROOT, "build")).free >> 30
    if free_gb < engines.DISK_GB and not os.path.exists(os.path.join(ROOT, "build", "engines", ".stamp")):
        tally.skipped.append(f"engines: {free_gb} GB of disk are free, and the engines' wheels want {engines.DISK_GB}")
        print(tally.skipped[-1], flush=True)
        return None
    return Beside("setup/engines.sh", ["nice", "-n", "10", "tools/setup/engines.sh"], away=engines.AWAY)


def engines_run(tally, beside, begin):
    """The suites, once build/engines is there and has the package of this tree."""
    until = min(time.monotonic() + ENGINES_MINUTES * 60, begin + ALL_MINUTES * 60)
    # The package takes minutes, which nobody has any more behind the deadline: then all suites are named.
    if beside.end(tally, until) and (time.monotonic() >= until or run(tally, "engines/package", ["make", "engines"])):
        engines.suites(tally, until=until, deadline=f"the deadline ({ENGINES_MINUTES} minutes for the engines, {ALL_MINUTES} for all)")


def main():
    fast, with_engines = sys.argv[1:] == ["--fast"], sys.argv[1:] == ["--engines"]
    if sys.argv[1:] and not fast and not with_engines:
        sys.exit(__doc__)
    os.makedirs(LOGS, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))   # what runs in groups of its own ends, too
    tally = Tally()
    begin = time.monotonic()

    set_up = [["tools/setup/packages.sh"], ["tools/setup/venv.sh"], ["tools/setup/llama.sh"], ["tools/setup/models.sh", "smollm2", "gemma3"]]
    if not fast:
        set_up.append(["tools/setup/zig.sh"])
    ready = all(run(tally, "setup/" + os.path.basename(command[0]), command, quiet=False) for command in set_up)
    # Real items are one test's, which says itself what it lacks: an index without them stops nothing.
    if ready and not run(tally, "setup/tasks.sh", ["tools/setup/tasks.sh"], quiet=False, optional=True):
        tally.skipped.append("setup/tasks.sh: the items of octavo eval's tasks could not be fetched; its test on real items has none, or those of before")
    if ready:
        print(f"setup: ready in {time.monotonic() - begin:.0f} s", flush=True)
        if not fast and NVCC:
            BUILDS["release"].append("-DOCTAVO_DEVICE=ON")
        elif not fast:
            tally.skipped.append("code for NVIDIA GPUs, and the library with code for GPUs in it: there is no nvcc")
        others = engines_begin(tally) if with_engines else None
        # What others' clients need comes while the release build runs. The soak takes a tenth of a core for three minutes, beside everything else.
        clients = None if fast else Beside("setup/clients.sh", ["tools/setup/clients.sh"])
        soak = None
        built = build(tally, "release")
        if clients:
            clients.end(tally)
        if built:
            if not fast:
                soak = Beside("release/soak", ["nice", "-n", "5", "build/venv/bin/python", "-B", "tests/serve/soak.py", "--octavo", "build/release/octavo", "--minutes", "3", "--pause", "2", "--bursts"], counts=True)
            ctest(tally, "release", "fast" if fast else None)
        if not fast:
            if build(tally, "clang"):
                # The device texts on the host executor, the engine, the server and the command line run under clang in the sanitized build: once more here would cost four
                # minutes; check_* asks no compiler. Long contexts differ from gcc's by the compiler's sums alone, which parity_attn judges too.
                ctest(tally, "clang", "fast", leave_out="^(device|api_device|driver|amdsim|engine|serve|apps|check)_|^fault_(J1_|H.*_serve|L._text|(K4|L3|L6|L7)_server)")
            if build(tally, "sanitize"):
                ctest(tally, "sanitize", "fast")
                ctest(tally, "sanitize", "fuzz")
            if build(tally, "threads"):
                # Of the server what has all its threads at once: 200 clients that hang up, and saves and restores beside answers, 13 s. The rest takes minutes there: make check-serve-threads.
                ctest(tally, "threads", "fast", leave_out="^serve_(pages|text|scheduler|runner|draft|profile|faults_unknown|text_unknown|server|hostile|bounds|load|page|guard)$|^fault_(H.*_serve|L._text|(K4|L3|L6|L7)_server)$")
        if soak:
            soak.end(tally)
        if others and built:
            engines_run(tally, others, begin)
        elif others and others.process.poll() is None:
            others.stop()

    if ready and not fast:
        tally.failed += [f"nothing executed {name}" for name in tally.executed.report(ROOT)]
    print(f"\ntook {(time.monotonic() - begin) / 60:.1f} minutes: "
          + ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in tally.stages if seconds >= 1))
    tally.close()


if __name__ == "__main__":
    main()
