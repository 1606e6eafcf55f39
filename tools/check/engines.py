#!/usr/bin/env python3
"""PyTorch's operators and the plug-ins on real engines: tests/python_torch, _transformers, _vllm and _sglang, two suites side by side. `make check-engines` calls it.

usage: engines.py [--python PYTHON] [SUITE...]

A suite runs on build/engines, or build/sglang, or on PYTHON. Logs, with the slowest tests at their end, lie in build/check. A suite without its engine fails: its tests would
pass for skipped. The last line is the sum. check.py calls `suites` with a deadline: what has not ended by then is named as skipped.
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import time

from tally import Tally

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LOGS = os.path.join(ROOT, "build", "check")

ALL = ("vllm", "sglang", "transformers", "torch")   # the longest first
DISK_GB = 15                                        # tools/setup/engines.sh asks for as much
AWAY = 75                                           # its status where a package index does not serve

# A line of pytest -v once its test has ended, and how many there are to be.
ENDED = re.compile(r"^\S+?\.py::(.+?) (PASSED|FAILED|ERROR|SKIPPED)(?: \((.*)\))?\s*$", re.M)
BEGUN = re.compile(r"^\S+?\.py::(.+?) *\Z", re.M)
COLLECTED = re.compile(r"^collected (\d+) items?", re.M)


class Suite:
    """pytest over one folder, in a process group of its own, with a log that says how far it has come."""

    def __init__(self, name, python):
        self.name, self.begin = name, time.monotonic()
        self.log = os.path.join(LOGS, f"engines-{name}.log")
        # Wide enough that no reason of a skip is cut off.
        environment = {**os.environ, "COLUMNS": "400", "PYTHONUNBUFFERED": "1"}
        with open(self.log, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen([python, "-B", "-m", "pytest", "-v", "--color=no", "-o", "console_output_style=classic", "-p", "no:cacheprovider", "--durations=12", f"tests/python_{name}"],
                                            cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True, env=environment)

    def stop(self):
        """Ends pytest and the engines that it has started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def count(self, tally, deadline=None):
        """Adds up what the log says. deadline: the words for what had no time; None: the suite has ended by itself."""
        seconds = time.monotonic() - self.begin
        tally.stages.append((f"engines/{self.name}", seconds))
        with open(self.log, encoding="utf-8", errors="replace") as file:
            text = file.read()
        ended = ENDED.findall(text)
        passed = sum(result == "PASSED" for _, result, _ in ended)
        failed = [f"engines/{self.name}: {test}" for test, result, _ in ended if result in ("FAILED", "ERROR")]
        skipped = [f"engines/{self.name}: {test}: {reason or 'no reason printed'}" for test, result, reason in ended if result == "SKIPPED"]
        if deadline:
            collected, cut = COLLECTED.search(text), BEGUN.search(text)
            left = f"{int(collected.group(1)) - len(ended)} of {collected.group(1)} tests" if collected else "all tests"
            skipped.append(f"engines/{self.name}: {left} had no time before {deadline}" + (f"; {cut.group(1)} was at work" if cut else ""))
        elif self.process.returncode != 0 and not failed:
            # 5 is pytest's word for no tests: that of a suite without its engine, too.
            failed.append(f"engines/{self.name}: pytest ended with status {self.process.returncode}" + (", no test ran" if self.process.returncode == 5 else ""))
        elif self.process.returncode == 0 and not passed:
            failed.append(f"engines/{self.name}: no test passed")
        if failed:
            sys.stdout.write("\n".join(text.splitlines()[-120:]) + f"\nFAILED engines/{self.name} (log: {os.path.relpath(self.log, ROOT)})\n")
        tally.passed += passed
        tally.failed += failed
        tally.skipped += skipped
        print(f"engines/{self.name}: {passed} tests passed, {len(failed)} failed, {len(skipped)} skipped in {seconds:.0f} s", flush=True)


def suites(tally, names=ALL, python=None, until=None, deadline="the deadline"):
    """Runs suites, two at a time, until a moment of time.monotonic() (None: to their end), and adds them up."""
    os.makedirs(LOGS, exist_ok=True)
    waiting, running = sorted(names, key=ALL.index), []
    try:
        while waiting or running:
            late = until is not None and time.monotonic() >= until
            while waiting and not late and len(running) < min(2, os.cpu_count() or 1):
                name = waiting.pop(0)
                running.append(Suite(name, python or os.path.join(ROOT, "build", "sglang" if name == "sglang" else "engines", "bin", "python")))
            for suite in [s for s in running if late or s.process.poll() is not None]:
                over = suite.process.poll() is not None
                suite.stop()   # also what engines may have left running
                suite.count(tally, None if over else deadline)
                running.remove(suite)
            if late:
                for name in waiting:
                    tally.skipped.append(f"engines/{name}: all tests had no time before {deadline}")
                    print(f"engines/{name}: not begun before {deadline}", flush=True)
                return
            time.sleep(0.2)
    finally:
        for suite in running:
            suite.stop()


def main():
    arguments = argparse.ArgumentParser(usage=__doc__)
    arguments.add_argument("--python")
    arguments.add_argument("suites", nargs="*", choices=[[], *ALL], metavar="SUITE")
    given = arguments.parse_args()
    tally = Tally()
    suites(tally, given.suites or ALL, given.python)
    tally.close()


if __name__ == "__main__":
    main()
