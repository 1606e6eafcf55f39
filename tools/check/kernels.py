"""Which kernel was executed by what: from the lines "NAME judged on N cases" that the tests print. check.py calls it.

Every row of src/cpu/variants.def and every kernel of src/device/kernels.def and src/cuda/kernels_sm90a.def must have been judged somewhere.
"""
import os
import re

JUDGED = re.compile(r"^([a-z_0-9]+(?:\.[a-z0-9]+)?)(?:/(?:32|64))? +judged on ([0-9]+) cases", re.M)

# Column by the beginning of a test's name; the first that fits.
EXECUTORS = [("amdsim_kernels_gfx942", "gfx942 simulator"), ("amdsim_kernels_gfx950", "gfx950 simulator"), ("simde_", "SIMDe"), ("device_", "host executor"),
             ("parity_", "native"), ("fault_", "native")]
COLUMNS = ["native", "SIMDe", "host executor", "gfx942 simulator", "gfx950 simulator"]
OPERATIONS = {"WRITE": "kv_write", "DECODE": "attn_decode", "EXTEND": "attn_extend", "MERGE": "attn_merge"}


def names(root):
    """All kernels, in the order of their tables."""
    found = []
    with open(os.path.join(root, "src/cpu/variants.def"), encoding="utf-8") as table:
        found += [f"{OPERATIONS[op]}.{name}" for op, name in re.findall(r"^(WRITE|DECODE|EXTEND|MERGE)_VARIANT\((\w+)", table.read(), re.M)]
    for path in ("src/device/kernels.def", "src/cuda/kernels_sm90a.def"):
        with open(os.path.join(root, path), encoding="utf-8") as table:
            found += re.findall(r"^X\((\w+)", table.read(), re.M)
    return found


class Executed:
    def __init__(self):
        self.cases = {}

    def add(self, test, output):
        column = next((column for begin, column in EXECUTORS if test.startswith(begin)), None)
        for name, n in JUDGED.findall(output) if column else []:
            key = (name, column)
            self.cases[key] = self.cases.get(key, 0) + int(n)

    def report(self, root):
        """Prints the table; returns the kernels that nothing executed."""
        rows = names(root)
        print("\nkernel x executor, judged cases:\n" + f"{'':34}" + "".join(f"{column:>18}" for column in COLUMNS))
        for name in rows:
            print(f"{name:34}" + "".join(f"{self.cases.get((name, column), '-'):>18}" for column in COLUMNS))
        return [name for name in rows if not any((name, column) in self.cases for column in COLUMNS)]
