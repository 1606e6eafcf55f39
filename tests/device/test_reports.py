"""The gates over the GPU compilers' reports (cmake/device_report.cmake) and over their code (cmake/device_instructions.cmake): what is in order passes,
and each thing wrong with it is refused by the kernel's name. Reports and code are made here in the compilers' own form.

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
HOPPERS = os.path.join(ROOT, "src", "cuda", "kernels_sm90a.def")
with open(HOPPERS, encoding="utf-8") as file:
    HOPPERS_LANES = {"oct__dev_" + name: int(lanes) for name, lanes in re.findall(r"^X\((\w+), (\d+)", file.read(), re.M)}
    HOPPERS_NAMES = list(HOPPERS_LANES)
IGNORED = "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.\n"


def ptxas(name, stack=0, stores=0, loads=0, shared=2048, registers=48):
    return (f"ptxas info    : Compiling entry function '{name}' for 'sm_90a'\nptxas info    : Function properties for {name}\n"
            f"    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads\n"
            f"ptxas info    : Used {registers} registers, used 1 barriers" + (f", {shared} bytes smem\n" if shared else "\n")
            + "ptxas info    : Compile time = 159.813 ms\n")


def amdgpu(name, scratch=0, spilled=0, scalars=3, shared=2048):
    fields = [("Function Name", name), ("TotalSGPRs", 40), ("VGPRs", 62), ("AGPRs", 4), ("ScratchSize [bytes/lane]", scratch), ("Dynamic Stack", "False"),
              ("Occupancy [waves/SIMD]", 8), ("SGPRs Spill", scalars), ("VGPRs Spill", spilled), ("LDS Size [bytes/block]", shared)]
    return "".join(f"src/device/kv_write.h:16:1: remark: {'' if i == 0 else '    '}{field}: {value} [-Rpass-analysis=kernel-resource-usage]\n"
                   for i, (field, value) in enumerate(fields))


def gate(kind, text, kernels=KERNELS):
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        with open(log, "w", encoding="utf-8") as file:
            file.write(text)
        run = subprocess.run([CMAKE, f"-DKIND={kind}", f"-DLOG={log}", f"-DKERNELS={kernels}", "-DSHARED_LIMIT=49152", "-P",
                              os.path.join(ROOT, "cmake", "device_report.cmake")], capture_output=True, text=True)
        return run.returncode, " ".join(run.stderr.split())


PTX = ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f1};", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1};",
       "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r1}, {%r2}, {%r3}, {%r1};", "cvt.rn.f16x2.e4m3x2 %r1, %rs1;", "cp.async.cg.shared.global.L2::128B [%r1], [%rd1], 16, %r2;")
PTX_PROBE = ("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%f1}, {%r1}, {%r2}, {%f1};", "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {%f1};")
AMD = ("v_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]", "v_mfma_f32_16x16x16_bf16 v[0:3], v[0:1], v[2:3], v[0:3]", "v_cvt_pk_f32_fp8_e32 v[0:1], v2",
       "v_mfma_i32_16x16x32_i8 v[0:3], v[4:5], v[6:7], v[0:3]", "v_mfma_f32_16x16x32_fp8_bf8 v[0:3], v[4:5], v[6:7], v[0:3]")
FP8 = ("v_mfma_f32_16x16x32_fp8_fp8 v[0:3], v[4:5], v[6:7], v[0:3]",)
SCALED = ("v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:19], v[0:3], v20, v20 op_sel_hi:[0,0,0]",)


def code(kind, name, lines):
    label = f".visible .entry {name}(" if kind == "ptx" else f"{name}:"
    return "\n".join([label, *("\t" + line for line in lines), "\tret;" if kind == "ptx" else "\ts_endpgm"]) + "\n"


def code_gate(kind, arch, text, kernels=KERNELS):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "code")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        run = subprocess.run([CMAKE, f"-DKIND={kind}", f"-DARCH={arch}", f"-DTEXT={path}", f"-DKERNELS={kernels}", "-P",
                              os.path.join(ROOT, "cmake", "device_instructions.cmake")], capture_output=True, text=True)
        return run.returncode, " ".join(run.stderr.split())


# Whether a kernel must have a line: by the bits of K and V in its name, and the chip.
def is_wanted(line, name, arch):
    if "probe" in name:
        return line in PTX_PROBE or "16x16x32_fp8" in line
    k, v = name.split("_mma_")[1].split("_")[:2]
    if "bf16" in line:
        return "16" in (k, v)
    if "fp8_bf8" in line:
        return v == "8"
    if "fp8_fp8" in line:
        return k == "8" and arch == "gfx942"
    if ".s8." in line or "_i8" in line or "scale" in line:
        return k == "8"
    return line not in PTX_PROBE and ("8" in (k, v) or not ("e4m3x2" in line or "f32_fp8" in line))


def instructions():
    n = 0
    for kind, arch, lines in (("ptx", "sm_90a", PTX + PTX_PROBE), ("amdgpu", "gfx942", AMD + FP8), ("amdgpu", "gfx950", AMD + FP8 + SCALED)):
        status, text = code_gate(kind, arch, "".join(code(kind, name, lines) for name in NAMES))
        assert status == 0, text
        for bad in ("oct__dev_attn_decode_mma_8_16_128", "oct__dev_attn_decode_mma_16_8_256", "oct__dev_attn_extend_mma_16_16_256", "oct__dev_tile_probe"):
            for left_out in lines:
                if not is_wanted(left_out, bad, arch):
                    continue
                status, text = code_gate(kind, arch, "".join(code(kind, name, [x for x in lines if name != bad or x != left_out]) for name in NAMES))
                assert status != 0 and bad + ": no" in text, (kind, bad, left_out, text)
                n += 1
    spill = "".join(code("amdgpu", name, AMD + FP8 + (("scratch_store_dword off, v1, off",) if name == NAMES[1] else ())) for name in NAMES)
    status, text = code_gate("amdgpu", "gfx942", spill)
    assert status != 0 and NAMES[1] + ": touches scratch" in text, text
    return n + 1


# Hopper's extend lives on products of warpgroups, of the type in its name.
def hoppers_instructions():
    extends = [name for name in HOPPERS_NAMES if "_extend_sm90a_" in name]

    def one(name, wrong):
        if name not in extends:
            return code("ptx", name, ())
        kind = name.split("_sm90a_")[1].split("_")[0]
        if name == wrong:
            kind = "bf16" if kind == "f16" else "f16"
        return code("ptx", name, (f"wgmma.mma_async.sync.aligned.m64n128k16.f32.{kind}.{kind} {{%f1}}, %rd1, %rd2, p, 1, 1, 0, 0;",))
    portable = "".join(code("ptx", name, PTX + PTX_PROBE) for name in NAMES)
    for wrong in (None, extends[0], extends[-1]):
        status, text = code_gate("ptx", "sm_90a", portable + "".join(one(name, wrong) for name in HOPPERS_NAMES), f"{KERNELS};{HOPPERS}")
        assert (status == 0) == (wrong is None) and (wrong is None or wrong + ": no wgmma" in text), (wrong, text)
    return 2


# Hopper's extend begins with the registers that its warpgroups reckon with, and changes them.
def hoppers():
    def first(name):
        return 65536 // HOPPERS_LANES[name] // 8 * 8

    def report(wrong=None, registers=0):
        return "".join(ptxas(name, registers=registers if name == wrong else first(name) if "_extend_sm90a_" in name else 90) for name in HOPPERS_NAMES)
    status, text = gate("ptxas", report(), HOPPERS)
    assert status == 0, text
    extends = [name for name in HOPPERS_NAMES if "_extend_sm90a_" in name]
    assert len(extends) >= 8
    for name in (extends[0], extends[-1]):
        for registers in (first(name) - 8, first(name) + 8):
            status, text = gate("ptxas", report(name, registers), HOPPERS)
            assert status != 0 and f"{name}: begins with {registers} registers" in text, text
    for text in (IGNORED + report(), report() + IGNORED.replace("; unable to determine register count at entry", " to maintain minimum register requirements")):
        status, text = gate("ptxas", text, HOPPERS)
        assert status != 0 and "'setmaxnreg' ignored" in text, text
    return 6


def main():
    assert len(NAMES) >= 9
    n = hoppers()
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
    print(f"{n} faults in reports and {instructions() + hoppers_instructions()} in code refused")


main()
