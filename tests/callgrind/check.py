"""Counts the instructions of seven fixed kernels under callgrind and compares them with the record.

usage: check.py VALGRIND PROGRAM RECORD SCRATCH_FOLDER [--update]
       check.py --skip REASON      where the build can't be judged

More than 5 % above the record fails: a kernel got slower, or the record wants a new figure, which the commit then shows. Counts are the compiler's
as well as the kernels': only the release build of gcc 12 is judged.
"""
import os
import re
import subprocess
import sys

KERNELS = {"attn_decode.avx2": "measured_decode_avx2", "attn_extend.avx2": "measured_extend_avx2", "attn_decode.scalar": "measured_decode_scalar",
           "kv_write.avx2": "measured_write_avx2", "kv_write.scalar": "measured_write_scalar", "attn_merge.scalar": "measured_merge_scalar",
           "attn_merge.avx2": "measured_merge_avx2"}
ALLOWED = 1.05


def counts(valgrind, program, folder):
    os.makedirs(folder, exist_ok=True)
    out = os.path.join(folder, "out")
    # Collecting goes on and off with the measured functions.
    run = subprocess.run([valgrind, "--tool=callgrind", "--toggle-collect=measured_*", f"--callgrind-out-file={out}", program], capture_output=True, text=True)
    if run.returncode == 77:
        print(f"skipped: {run.stdout.strip()}")
        sys.exit(77)
    if run.returncode != 0:
        sys.exit(f"{program} under {valgrind}: status {run.returncode}\n{run.stdout}\n{run.stderr}")
    annotate = os.path.join(os.path.dirname(valgrind), "callgrind_annotate")
    text = subprocess.run([annotate, "--inclusive=yes", "--threshold=100", out], check=True, capture_output=True, text=True).stdout
    found = {}
    for kernel, function in KERNELS.items():
        match = re.search(rf"^\s*([\d,]+)[^\n]*:{function}\b", text, re.M)
        if not match:
            sys.exit(f"{function} is not among what {annotate} lists")
        found[kernel] = int(match.group(1).replace(",", ""))
    return found


def main():
    if sys.argv[1:2] == ["--skip"]:
        print(f"skipped: {sys.argv[2]}")
        sys.exit(77)
    valgrind, program, record, folder = sys.argv[1:5]
    now = counts(valgrind, program, folder)
    if sys.argv[5:] == ["--update"]:
        with open(record, "w", encoding="utf-8") as file:
            file.write("# Instructions of tests/callgrind/kernels.c by kernel; gcc 12, release. Written by: ninja callgrind-update\n")
            file.writelines(f"{name} {count}\n" for name, count in now.items())
    with open(record, encoding="utf-8") as file:
        before = {name: int(count) for name, count in (line.split() for line in file if not line.startswith("#"))}
    failed = before.keys() != now.keys()
    for name, count in now.items():
        change = count / before.get(name, count) - 1
        too_many = count > ALLOWED * before.get(name, count)
        failed |= too_many
        print(f"{name:20} {count:>12} instructions, {100 * change:+.1f} % of the record{': too many' if too_many else ''}")
    if failed:
        sys.exit("a kernel needs more than 5 % more instructions than recorded: make it as fast again, or `ninja callgrind-update` and say why in the commit")


main()
