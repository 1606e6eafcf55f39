#!/usr/bin/env python3
"""What the library exports, and what it never calls.

usage: symbols.py --shared LIBRARY --static LIBRARY --headers DIRECTORY --snapshot FILE [--update]

The exported symbols must be those of the snapshot, declared by the public headers, and all oct_*; the static library may
also hold the rooms' oct__*.
Neither may refer to a function that prints, ends the process or reads the environment.
"""
import argparse
import os
import re
import subprocess
import sys

FORBIDDEN = set("""abort exit _exit _Exit quick_exit __assert_fail __assert_rtn raise printf vprintf puts putchar perror
    __printf_chk __vprintf_chk stdout stderr stdin getenv secure_getenv setenv putenv psignal err errx warn warnx syslog""".split())


def nm(library, *options):
    """{(name, type letter)} of a library's symbols, without versions."""
    out = subprocess.run(["nm", *options, library], check=True, capture_output=True, text=True).stdout
    symbols = set()
    for line in out.splitlines():
        fields = line.split()
        if len(fields) >= 2 and len(fields[-2]) == 1:
            symbols.add((fields[-1].split("@")[0], fields[-2]))
    return symbols


def declared(directory):
    """Names that the public headers declare as exported."""
    names = set()
    for header in sorted(os.listdir(directory)):
        with open(os.path.join(directory, header), encoding="utf-8") as file:
            names.update(re.findall(r"^OCT_API\b[^;(]*?\b(\w+)\s*\(", file.read(), re.M))
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", required=True)
    parser.add_argument("--static", required=True)
    parser.add_argument("--headers", required=True)
    parser.add_argument("--snapshot", required=True)
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()

    exported = sorted(name for name, _ in nm(options.shared, "-D", "--defined-only"))
    if options.update:
        with open(options.snapshot, "w", encoding="utf-8") as file:
            file.writelines(name + "\n" for name in exported)
    with open(options.snapshot, encoding="utf-8") as file:
        expected = file.read().split()

    complaints = [f"exported, but not in {options.snapshot}: {name}" for name in exported if name not in expected]
    complaints += [f"in {options.snapshot}, but no longer exported (an ABI break): {name}" for name in expected if name not in exported]
    complaints += [f"declared in the public headers, but not exported: {name}" for name in sorted(declared(options.headers) - set(exported))]
    complaints += [f"exported, but in no public header: {name}" for name in sorted(set(exported) - declared(options.headers))]
    complaints += [f"exported under a name that is not public: {name}" for name in exported
                   if not name.startswith("oct_") or name.startswith("oct__")]
    complaints += [f"a global name without oct_ in the static library: {name}"
                   for name, _ in sorted(nm(options.static, "-g", "--defined-only")) if not name.startswith("oct_")]
    complaints += [f"the library must not use {name}" for name, _ in sorted(nm(options.static, "-u")) if name in FORBIDDEN]

    for line in complaints:
        print(line)
    print(f"symbols: {len(exported)} exported, {len(complaints)} complaints")
    if complaints:
        print("a meant change of the public symbols: make abi-update, and say so in NEWS.md")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
