"""Each rule of tools/check fails on a tree that breaks it, and says where.

usage: test_rules.py C_COMPILER
"""
import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
import types
import unittest
import unittest.mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COMPILER = sys.argv.pop(1)


class Tree(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="octavo-rules-")
        self.root = self.folder.name
        self.addCleanup(self.folder.cleanup)

    def write(self, path, text):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)

    def run_rule(self, script, *arguments):
        command = [sys.executable, os.path.join(ROOT, script), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


class Layering(Tree):
    GOOD = {
        "include/octavo/a.h": "#include <stdint.h>\n",
        "src/host/clock.h": "#include <time.h>\n#include <pthread.h>\n",
        "src/kv/layout.h": '#include "octavo/a.h"\n#include "host/clock.h"\n',
        "src/kv/table.h": '#include "layout.h"\n',
        "src/plan/variant.h": '#include "kv/layout.h"\n',
        "src/plan/choose.h": '#include "variant.h"\n',
        "src/plan/choose.c": '#include "choose.h"\n#include "cpu/variants.def"\n/* #include "cpu/probe.h" */\n',
        "src/cpu/variants.def": "/* rows */\n",
        "src/cpu/probe.h": '#include "plan/variant.h"\n#include <immintrin.h>\n',
        "src/device/driver.h": '#include "kv/layout.h"\n#include "host/clock.h"\n',
        "src/cuda/driver.c": '#include "device/driver.h"\n#include "host/clock.h"\n',
        "src/hip/x.h": '#include "device/driver.h"\n',
        "src/api/plan.c": '#include "plan/choose.h"\n#include "cpu/probe.h"\n',
        "engine/model.c": "#include <octavo/a.h>\n#include <ggml.h>\n#include \"llama.h\"\n",
    }

    def setUp(self):
        super().setUp()
        for path, text in self.GOOD.items():
            self.write(path, text)

    def test_a_lawful_tree_passes(self):
        status, output = self.run_rule("tools/check/layering.py", self.root)
        self.assertEqual(status, 0, output)

    def test_each_break_is_named_with_file_and_line(self):
        for path, include, why in [
            ("src/number/x.c", '"host/clock.h"', "number may not include host/clock.h"),
            ("src/host/x.c", '"kv/layout.h"', "host may not include kv/layout.h"),
            ("src/kv/x.c", '"plan/variant.h"', "kv may not include plan/variant.h"),
            ("src/plan/x.c", '"cpu/probe.h"', "plan may not include cpu/probe.h"),
            ("src/plan/x.c", '"kv/table.h"', "plan may not include kv/table.h"),
            ("src/cpu/x.c", '"plan/choose.h"', "cpu may not include plan/choose.h"),
            ("src/cpu/x.c", '"../plan/choose.h"', "cpu may not include plan/choose.h"),
            ("src/cuda/x.c", '"../hip/x.h"', "cuda may not include hip/x.h"),
            ("src/hip/x.c", '"plan/choose.h"', "hip may not include plan/choose.h"),
            ("src/cuda/x.c", "<dlfcn.h>", "src/host only"),
            ("engine/x.c", '"kv/layout.h"', "engine may not include kv/layout.h"),
            ("apps/x.c", '"src/kv/layout.h"', "apps may not include kv/layout.h"),
            ("apps/x.c", "<ggml.h>", "engine only"),
            ("src/api/x.c", '"llama.h"', "engine only"),
            ("src/kv/x.c", "<pthread.h>", "src/host only"),
            ("src/api/x.c", "<immintrin.h>", "src/cpu only"),
            ("src/kv/x.c", "<cuda.h>", "is in no list"),
            ("src/kv/x.c", '"kv/missing.h"', "not a file of this repository"),
            ("src/kv/x.c", "SOME_MACRO", "cannot be read"),
            ("src/utils/x.c", "<stdint.h>", "room 'utils' is not in the law"),
            ("include/octavo/x.h", '"kv/layout.h"', "include may not include kv/layout.h"),
        ]:
            with self.subTest(path=path, include=include):
                self.write(path, f"/* x */\n\n#  include {include} // why\n")
                status, output = self.run_rule("tools/check/layering.py", self.root)
                os.unlink(os.path.join(self.root, path))
                self.assertEqual(status, 1, output)
                self.assertIn(f"{path}:3: ", output)
                self.assertIn(why, output)


class Format(Tree):
    def test_each_break_is_named(self):
        subprocess.run(["git", "init", "-q", self.root], check=True)
        good = "/* Owns x. */\nint x;\n"
        for text, why in [("int x;\n", "must open with a comment"), (good + "int\ty;\n", ":3: tab"), (good + "int y; \n", ":3: blank"),
                          (good + "\n", "exactly one newline"), (good[:-1], "exactly one newline"), (good + "\r\n", "carriage return"),
                          (good + "int y;\n" * 899, "901 lines")]:
            with self.subTest(why=why):
                self.write("src/kv/x.c", text)
                status, output = self.run_rule("tools/check/format.py", self.root)
                self.assertEqual(status, 1, output)
                self.assertIn(why, output)
        self.write("src/kv/x.c", good + "int y;\n" * 898)
        status, output = self.run_rule("tools/check/format.py", self.root)
        self.assertEqual(status, 0, output)
        self.write("src/kv/x.h", "/* x */\n#ifndef WRONG\n#define WRONG\n#endif\n")
        status, output = self.run_rule("tools/check/format.py", self.root)
        self.assertEqual(status, 1, output)
        self.assertIn("include guard", output)


class Symbols(Tree):
    def build(self, code, header="OCT_API int oct_one(void);\n"):
        self.write("include/one.h", header)
        self.write("one.c", code)
        source, item, shared, static = (os.path.join(self.root, name) for name in ("one.c", "one.o", "libone.so", "libone.a"))
        subprocess.run([COMPILER, "-c", "-fPIC", "-fvisibility=hidden", source, "-o", item], check=True)
        subprocess.run([COMPILER, "-shared", item, "-o", shared], check=True)
        if os.path.exists(static):
            os.unlink(static)
        subprocess.run(["ar", "rcs", static, item], check=True)
        self.write("symbols.txt", "oct_one\n")
        return self.run_rule("tools/check/symbols.py", "--shared", shared, "--static", static,
                             "--headers", os.path.join(self.root, "include"), "--snapshot", os.path.join(self.root, "symbols.txt"))

    def test_only_the_listed_names_leave(self):
        api = '#define OCT_API __attribute__((visibility("default")))\nOCT_API int oct_one(void);\nint oct_one(void) { return 1; }\n'
        status, output = self.build(api + "int oct__two(void);\nint oct__two(void) { return 2; }\n")
        self.assertEqual(status, 0, output)
        for code, header, why in [
            (api + "OCT_API int oct_two(void);\nint oct_two(void) { return 2; }\n", None, "exported, but not in"),
            (api.replace("oct_one", "oct_uno"), None, "no longer exported"),
            (api, "OCT_API int oct_one(void);\nOCT_API const char *oct_three(int a);\n", "declared in the public headers, but not exported: oct_three"),
            (api + "int helper(void);\nint helper(void) { return 2; }\n", None, "without oct_ in the static library: helper"),
            ("#include <stdlib.h>\n" + api.replace("return 1;", "abort();"), None, "must not use abort"),
            ("#include <stdio.h>\n" + api.replace("return 1;", 'return fprintf(stderr, "x");'), None, "must not use stderr"),
            ("#include <stdlib.h>\n" + api.replace("return 1;", 'return getenv("X") != 0;'), None, "must not use getenv"),
        ]:
            with self.subTest(why=why):
                status, output = self.build(code, header or "OCT_API int oct_one(void);\n")
                self.assertEqual(status, 1, output)
                self.assertIn(why, output)


class Layout(Tree):
    HEADER = """#ifndef X
#define X
#include <stddef.h>
#include <stdint.h>
#define OCT_NONE (-1)
typedef enum oct_kind { OCT_KIND_A = 1, OCT_KIND_B } oct_kind;
typedef struct oct_pair { uint32_t a[3], b; void *(*call)(int x, int y); %s } oct_pair;
#endif
"""

    def layout(self, more, update):
        self.write("include/octavo/octavo.h", self.HEADER % more)
        source, program, snapshot = (os.path.join(self.root, name) for name in ("layout.c", "layout", "layout.txt"))
        include = os.path.join(self.root, "include")
        status, output = self.run_rule("tests/abi/layout_source.py", COMPILER, include, source)
        self.assertEqual(status, 0, output)
        subprocess.run([COMPILER, "-std=c17", "-I", include, source, "-o", program], check=True)
        return self.run_rule("tests/abi/layout_compare.py", program, snapshot, *(["--update"] if update else []))

    def test_growth_and_breaks_are_seen(self):
        status, output = self.layout("double c;", True)
        self.assertEqual(status, 0, output)
        with open(os.path.join(self.root, "layout.txt"), encoding="utf-8") as file:
            lines = file.read().splitlines()
        self.assertEqual(lines, ["oct_pair.a 0 12", "oct_pair.b 12 4", "oct_pair.call 16 8", "oct_pair.c 24 8", "sizeof oct_pair 32",
                                 "oct_kind OCT_KIND_A 1", "oct_kind OCT_KIND_B 2", "macro OCT_NONE -1"])
        for more, why in [("double c, d;", "new:           oct_pair.d"), ("float c;", "moved (break): oct_pair.c"), ("", "gone (break):  oct_pair.c"),
                          ("int d; double c;", "moved (break): oct_pair.c")]:
            with self.subTest(more=more):
                status, output = self.layout(more, False)
                self.assertEqual(status, 1, output)
                self.assertIn(why, output)


class Docs(Tree):
    def test_pages_are_held_to_the_tree(self):
        self.write("tools/check/docs.py", "")
        shutil.copy(os.path.join(ROOT, "tools/check/docs.py"), os.path.join(self.root, "tools/check/docs.py"))
        self.write("Makefile", "demo:\n")
        self.write("build/demo/report.md", "ran\n\n| a |\n|---|\n| 1 |\n\nend\n")
        self.write("build/demo/report.json", "[]\n")
        script = os.path.join(self.root, "tools/check/docs.py")
        page = "[x](Makefile) `make demo` `tools/check/docs.py`\n<!-- figures: doc/figures/demo.md table 1 -->\n<!-- end figures -->\n"
        self.write("README.md", page)
        status, output = self.run_rule(script)
        self.assertEqual(status, 1, output)
        self.assertIn("README.md:2: there is no doc/figures/demo.md with a table 1", output)
        status, output = self.run_rule(script, "--update")
        self.assertEqual(status, 0, output)
        with open(os.path.join(self.root, "README.md"), encoding="utf-8") as file:
            good = file.read()
        self.assertIn("table 1 -->\n| a |\n|---|\n| 1 |\n<!-- end", good)
        for was, becomes, why in [("| 1 |", "| 2 |", "letter for letter"), ("(Makefile)", "(Nofile)", "leads nowhere: Nofile"),
                                  ("make demo", "make dream", "no target dream"), ("tools/check/docs.py", "tools/check/dogs.py", "there is no tools/check/dogs.py")]:
            with self.subTest(why=why):
                self.write("README.md", good.replace(was, becomes))
                status, output = self.run_rule(script)
                self.assertEqual(status, 1, output)
                self.assertIn(why, output)


class Counting(Tree):
    LISTS = """cmake_minimum_required(VERSION 3.25)
project(x NONE)
enable_testing()
add_test(NAME good COMMAND echo "[  SKIPPED ] inner_one")
add_test(NAME bad COMMAND false)
add_test(NAME away COMMAND sh -c "echo no such device; exit 77")
add_test(NAME missing COMMAND /nowhere/program)
set_tests_properties(away PROPERTIES SKIP_RETURN_CODE 77)
set_tests_properties(good bad away missing PROPERTIES LABELS fast)
"""

    def test_each_outcome_is_counted_and_named(self):
        sys.path.insert(0, os.path.join(ROOT, "tools", "check"))
        import check
        check.ROOT, check.LOGS = self.root, os.path.join(self.root, "build", "check")
        os.makedirs(check.LOGS)
        self.write("CMakeLists.txt", self.LISTS)
        subprocess.run(["cmake", "-S", self.root, "-B", os.path.join(self.root, "build", "x")], check=True, capture_output=True)
        tally = check.Tally()
        with contextlib.redirect_stdout(io.StringIO()):
            check.ctest(tally, "x", "fast")
            check.ctest(tally, "x", "slow")
        self.assertEqual(tally.passed, 1)
        self.assertEqual(tally.skipped, ["x/good: inner_one", "x/away: no such device"])
        self.assertEqual(sorted(title.split(":")[0] for title in tally.failed), ["x/bad", "x/missing", "x/slow"])


class Engines(Tree):
    """The suites of `make check-engines` over a Python that answers as told: what is skipped whole does not pass, what has no time or no wheels is named."""

    def setUp(self):
        super().setUp()
        sys.path.insert(0, os.path.join(ROOT, "tools", "check"))
        import check
        import engines
        self.check, self.engines = check, engines
        for module in (check, engines):
            module.ROOT, module.LOGS = self.root, os.path.join(self.root, "build", "check")
        os.makedirs(check.LOGS)
        self.said = io.StringIO()

    def python(self, **answers):
        """A Python that runs shell text for a suite; for the others it passes two tests of a file and skips one."""
        well = 'echo "collected 3 items"; for t in a "b[i8 rotated]"; do echo "t.py::test_$t PASSED"; done; echo "t.py::test_c SKIPPED (no GPU)"'
        cases = "".join(f"*{suite}) {text};; " for suite, text in answers.items())
        self.write("python", f'#!/bin/sh\ncase "$*" in {cases}*) {well};; esac\n')
        os.chmod(os.path.join(self.root, "python"), 0o755)
        return os.path.join(self.root, "python")

    def suites(self, until=None, **answers):
        tally = self.check.Tally()
        with contextlib.redirect_stdout(self.said):
            self.engines.suites(tally, python=self.python(**answers), until=until, deadline="noon")
        return tally

    def test_suites_are_added_up(self):
        tally = self.suites()
        self.assertEqual((tally.passed, tally.failed), (8, []))
        self.assertEqual(sorted(tally.skipped), [f"engines/{suite}: test_c: no GPU" for suite in sorted(self.engines.ALL)])

    def test_what_does_not_pass_fails(self):
        fails = 'echo "t.py::test_a PASSED"; echo "t.py::test_b FAILED"; exit 1'
        for text, title in ((fails, "engines/vllm: test_b"), ("exit 5", "engines/vllm: pytest ended with status 5, no test ran"), ("exit 2", "engines/vllm: pytest ended with status 2"),
                            ("true", "engines/vllm: no test passed"), ("kill -9 $$", "engines/vllm: pytest ended with status -9")):
            tally = self.suites(vllm=text)
            self.assertEqual((tally.failed, tally.passed >= 6), ([title], True), text)

    def test_the_deadline_is_named_and_ends_what_was_begun(self):
        left = os.path.join(self.root, "left")
        slow = f'echo "collected 3 items"; echo "t.py::test_a PASSED"; printf "t.py::test_b "; (sleep 600; touch {left}) & wait'

        def clock():   # strikes noon when both have come as far as they will
            logs = [os.path.join(self.engines.LOGS, f"engines-{suite}.log") for suite in ("vllm", "sglang")]
            return 12 if all(os.path.exists(log) and "test_b" in open(log, encoding="utf-8").read() for log in logs) else 0

        # Two cores: with one, the second suite would wait for the first, which waits for noon.
        with unittest.mock.patch.object(self.engines, "time", types.SimpleNamespace(monotonic=clock, sleep=time.sleep)), unittest.mock.patch.object(os, "cpu_count", lambda: 2):
            tally = self.suites(until=12, vllm=slow, sglang=slow)
        self.assertEqual((tally.failed, tally.passed), ([], 2))
        self.assertEqual(sorted(tally.skipped), ["engines/sglang: 2 of 3 tests had no time before noon; test_b was at work", "engines/torch: all tests had no time before noon",
                                                 "engines/transformers: all tests had no time before noon", "engines/vllm: 2 of 3 tests had no time before noon; test_b was at work"])
        # What a shell has begun has the shell's command line. Who is killed may take a moment to go.
        began, end = os.path.join(self.root, "python"), time.monotonic() + 60
        while subprocess.run(["pgrep", "-f", began], capture_output=True).returncode != 1 and time.monotonic() < end:
            time.sleep(0.05)
        self.assertLess(time.monotonic(), end)
        self.assertFalse(os.path.exists(left))

    def test_no_disk_and_no_wheels_are_named_and_other_failures_fail(self):
        tally, check = self.check.Tally(), self.check
        with contextlib.redirect_stdout(self.said), unittest.mock.patch.object(check.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=14 << 30)):
            self.assertIsNone(check.engines_begin(tally))
            for status, until in ((75, None), (0, 1), (1, None)):
                beside = check.Beside("setup", ["sh", "-c", f"echo no wheel; [ {status} != 0 ] || sleep 600; exit {status}"], away=75)
                self.assertFalse(beside.end(tally, until and time.monotonic() + until))
            self.write("build/engines/.stamp", "")   # what is there wants no room any more
            with unittest.mock.patch.object(check, "Beside", lambda *_, **__: "begun"):
                self.assertEqual(check.engines_begin(tally), "begun")
        self.assertEqual(tally.skipped, ["engines: 14 GB of disk are free, and the engines' wheels want 15", "setup: no wheel", "setup: it was not done in time; its last line: no wheel"])
        self.assertEqual(tally.failed, ["setup"])

    def test_make_check_engines_ends_with_the_sum(self):
        for text, status, last in (("exit 5", 2, "6 passed, 1 failed, 3 skipped"), ("exit 0", 2, "6 passed, 1 failed, 3 skipped")):
            done = subprocess.run(["make", "-s", "-C", ROOT, "check-engines", f"PYTHON={self.python(sglang=text)}"], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (status, last), done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
