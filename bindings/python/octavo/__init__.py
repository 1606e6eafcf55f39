"""Attention over key/value pages kept in 8 bits: the C library Octavo for Python.

Arrays are NumPy's, or of any package with DLPack (torch, jax, cupy), and are never copied. Calls that compute release the GIL.
doc/PYTHON.md has examples; doc/NUMERICS.md says what the numbers mean.
"""
from ._octavo import (
    AttentionPlan,
    BadData,
    Cancelled,
    Context,
    DeviceFault,
    InvalidArgument,
    IoError,
    KVFormat,
    KVLayer,
    KVPool,
    KVSpec,
    OctavoError,
    OutOfMemory,
    OutOfPages,
    PageTable,
    PageTableView,
    PoolArray,
    Rope,
    TwinPageTable,
    Unsupported,
    __version__,
    default_context,
    kv_write,
    machines,
    merge_states,
)
from ._calibration import Calibration, read_calibration
from ._numbers import calibrate, dequantize, quantize
from ._texts import explain, machine

__all__ = [
    "AttentionPlan", "BadData", "Calibration", "Cancelled", "Context", "DeviceFault", "InvalidArgument", "IoError", "KVFormat", "KVLayer", "KVPool", "KVSpec",
    "OctavoError", "OutOfMemory", "OutOfPages", "PageTable", "PageTableView", "PoolArray", "Rope", "TwinPageTable", "Unsupported", "__version__",
    "calibrate", "default_context", "dequantize", "explain", "kv_write", "machine", "machines", "merge_states", "quantize", "read_calibration",
]
