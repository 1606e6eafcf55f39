"""Texts of the library: which kernels would run and why, and what this machine is."""
from __future__ import annotations

import json as _json
from typing import Any

from . import _octavo


def explain(what: _octavo.AttentionPlan | _octavo.KVSpec, *, src_dtype: object = "bf16", json: bool = False, context: _octavo.Context | None = None) -> Any:
    """Every kernel variant for a plan, or for the write into pages of a KVSpec: chosen, eligible with its predicted time, or refused with each failed gate.

    Returns text, or with json the same as a dict. src_dtype, context: of the write. Source: oct_plan_explain, oct_kv_write_explain.
    """
    if isinstance(what, _octavo.AttentionPlan):
        text = what._explain(int(json))
    elif isinstance(what, _octavo.KVSpec):
        text = _octavo._write_explain(what, src_dtype, int(json), context)
    else:
        raise TypeError(f"explain takes an AttentionPlan or a KVSpec, not {type(what).__name__}")
    return _json.loads(text) if json else text


def machine(context: _octavo.Context | None = None, *, json: bool = False) -> Any:
    """What the library sees of the machine a context computes on, as text or as a dict. Source: oct_context_machine."""
    text = (context or _octavo.default_context())._machine(int(json))
    return _json.loads(text) if json else text
