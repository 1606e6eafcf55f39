"""The gate over the GPU compilers' reports (cmake/device_report.cmake): a report that is in order passes, and each thing wrong with it is refused
by the kernel's name. The reports are made here in the compilers' own form.

usage: test_reports.py ROOT CMAKE
"""
import os
import re
import subprocess
import sys
import tempfile

ROOT, CMAKE = sys.argv[1:]
KERNELS = os.path.join(ROOT, "src", "device", "kernels.def")
with open(KERNELS, encoding="utf-8") as file:
    NAMES = ["oct__dev_" + name for name in re.findall(r"^X\((\w+)", file.read(), re.M)]


def ptxas(name, stack=0, stores=0, loads=0, shared=2048):
    return (f"ptxas info    : Compiling entry function '{name}' for 'sm_90a'\nptxas info    : Function properties for {name}\n"
            f"    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads\n"
            f"ptxas info    : Used 48 registers, used 1 barriers" + (f", {shared} bytes smem\n" if shared else "\n")
            + "ptxas info    : Compile time = 159.813 ms\n")


def amdgpu(name, scratch=0, spilled=0, scalars=3, shared=2048):
    fields = [("Function Name", name), ("TotalSGPRs", 40), ("VGPRs", 62), ("AGPRs", 4), ("ScratchSize [bytes/lane]", scratch), ("Dynamic Stack", "False"),
              ("Occupancy [waves/SIMD]", 8), ("SGPRs Spill", scalars), ("VGPRs Spill", spilled), ("LDS Size [bytes/block]", shared)]
    return "".join(f"src/device/kv_write.h:16:1: remark: {'' if i == 0 else '    '}{field}: {value} [-Rpass-analysis=kernel-resource-usage]\n"
                   for i, (field, value) in enumerate(fields))


def gate(kind, text):
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        with open(log, "w", encoding="utf-8") as file:
            file.write(text)
        run = subprocess.run([CMAKE, f"-DKIND={kind}", f"-DLOG={log}", f"-DKERNELS={KERNELS}", "-DSHARED_LIMIT=49152", "-P",
                              os.path.join(ROOT, "cmake", "device_report.cmake")], capture_output=True, text=True)
        return run.returncode, " ".join(run.stderr.split())


def main():
    assert len(NAMES) >= 9
    n = 0
    for kind, one in (("ptxas", ptxas), ("amdgpu", amdgpu)):
        status, text = gate(kind, "".join(map(one, NAMES)))
        assert status == 0, text
        wrong = [dict(shared=49153)]
        wrong += [dict(stack=8), dict(stores=4), dict(loads=4)] if kind == "ptxas" else [dict(scratch=36), dict(spilled=1)]
        for index in (0, 3, len(NAMES) - 1):
            for change in wrong:
                status, text = gate(kind, "".join(one(name, **(change if i == index else {})) for i, name in enumerate(NAMES)))
                assert status != 0 and NAMES[index] + ":" in text, (kind, change, text)
                n += 1
            status, text = gate(kind, "".join(one(name) for i, name in enumerate(NAMES) if i != index))
            assert status != 0 and NAMES[index] + ": not in" in text, (kind, text)
            n += 1
    print(f"{n} faults in reports refused")


main()
