#!/usr/bin/env python3
"""The cheap half of style: what no reader should have to point out.

usage: format.py [REPOSITORY_ROOT]
Every text file: no tab outside Makefiles, no blank at a line's end, one newline at the end of the file, no carriage return.
C files: at most 900 lines, open with a comment that says what they own, headers have an include guard of their own name.
"""
import os
import re
import subprocess
import sys

LIMIT_LINES = 900
C_FILES = (".c", ".h", ".def")
TEXT_FILES = C_FILES + (".py", ".sh", ".cmake", ".txt", ".md", ".in")


def listed(root):
    """Tracked files and new ones that git would take."""
    out = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "-z"], check=True, capture_output=True)
    return sorted({name for name in out.stdout.decode().split("\0") if name and os.path.isfile(os.path.join(root, name))})


def complaints_of(root, path):
    with open(os.path.join(root, path), "rb") as file:
        data = file.read()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        yield 1, f"not UTF-8: {error.reason}"
        return
    if not text:
        yield 1, "empty file"
        return
    if "\r" in text:
        yield 1 + text[: text.index("\r")].count("\n"), "carriage return"
    if not text.endswith("\n") or text.endswith("\n\n"):
        yield text.count("\n"), "must end in exactly one newline"
    for number, line in enumerate(text.split("\n"), 1):
        if "\t" in line:
            yield number, "tab"
        if line != line.rstrip():
            yield number, "blank at the end of the line"
    if path.endswith(C_FILES):
        n_lines = text.count("\n")
        if n_lines > LIMIT_LINES:
            yield n_lines, f"{n_lines} lines; the limit is {LIMIT_LINES}"
        if not text.startswith("/*"):
            yield 1, "must open with a comment that says what it owns"
    if path.endswith(".h"):
        guard = re.search(r"^#ifndef (\w+)\n#define (\w+)$", text, re.M)
        name = re.sub(r"\W", "_", os.path.basename(path)).upper()
        if not guard or guard.group(1) != guard.group(2) or not guard.group(1).endswith(name):
            yield 1, f"wants an include guard that ends in {name}"


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(here))
    n_complaints = n_files = 0
    for path in listed(root):
        # First inputs of fuzz targets are bytes, whatever they are called.
        if not path.endswith(TEXT_FILES) or "/corpus" in path:
            continue
        n_files += 1
        for line, why in complaints_of(root, path):
            n_complaints += 1
            print(f"{path}:{line}: {why}")
    print(f"format: {n_files} files, {n_complaints} complaints")
    sys.exit(1 if n_complaints or not n_files else 0)


if __name__ == "__main__":
    main()
