"""Compares the layout that the program prints with the snapshot, and says which changes break callers that are built already.

usage: layout_compare.py PROGRAM SNAPSHOT [--update]
"""
import subprocess
import sys


def main():
    program, snapshot = sys.argv[1:3]
    run = subprocess.run([program], capture_output=True, text=True)
    sys.stderr.write(run.stderr)
    if run.returncode != 0:
        sys.exit(f"{program} failed with status {run.returncode}")
    if sys.argv[3:] == ["--update"]:
        with open(snapshot, "w", encoding="utf-8") as file:
            file.write(run.stdout)
    with open(snapshot, encoding="utf-8") as file:
        before = {key_of(line): line for line in file.read().splitlines()}
    now = {key_of(line): line for line in run.stdout.splitlines()}

    n_changes = 0
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if old == new:
            continue
        n_changes += 1
        if old is None:
            print(f"new:           {new}")
        elif new is None:
            print(f"gone (break):  {old}")
        elif key.startswith("sizeof "):
            print(f"size changed:  {old} -> {new.split()[-1]}")
        else:
            print(f"moved (break): {old} -> {new[len(key) + 1:]}")
    print(f"layout: {len(now)} facts, {n_changes} changes")
    if n_changes:
        print("a meant change of the public layout: make abi-update, and say so in NEWS.md; structs only grow at the end")
    sys.exit(1 if n_changes else 0)


def key_of(line):
    """What a line is about: all but its numbers."""
    return " ".join(word for word in line.split() if not word.lstrip("-").isdigit())


main()
