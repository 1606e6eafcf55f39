"""Every public header compiles alone, twice over, as C17 and as C++17, without a warning.

usage: headers.py INCLUDE_DIRECTORY C_COMPILER [CXX_COMPILER]
Without a C++ compiler the C half still runs, and the test then counts as skipped (exit 77).
"""
import os
import subprocess
import sys

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]


def main():
    include, c_compiler = sys.argv[1:3]
    cxx_compiler = sys.argv[3] if len(sys.argv) > 3 else ""
    languages = [("C17", [c_compiler, "-x", "c", "-std=c17"])]
    if cxx_compiler:
        languages.append(("C++17", [cxx_compiler, "-x", "c++", "-std=c++17"]))
    headers = sorted(name for name in os.listdir(os.path.join(include, "octavo")) if name.endswith(".h"))
    failed = 0
    for header in headers:
        source = f'#include "octavo/{header}"\n' * 2 + "extern int nothing;\n"
        for language, command in languages:
            run = subprocess.run([*command, *WARNINGS, "-I", include, "-"], input=source, capture_output=True, text=True)
            if run.returncode != 0:
                failed += 1
                print(f"octavo/{header} does not stand alone as {language}:\n{run.stderr}")
    print(f"headers: {len(headers)} headers as {' and '.join(name for name, _ in languages)}, {failed} failed")
    if failed or not headers:
        sys.exit(1)
    sys.exit(0 if cxx_compiler else 77)


main()
