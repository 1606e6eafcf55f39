"""The calibration file of `octavo calibrate` and `octavo advise`: scales and, from version 2 on, formats of every layer (doc/EVAL.md)."""
from __future__ import annotations

import json
import os
from dataclasses import dataclass

import numpy as np

from . import _octavo

NEWEST_VERSION = 2
_SUFFIXES = {"": "none", "tensor": "tensor", "layer": "layer", "head": "layer_head", "channel": "channel", "token": "token_head", "token32": "token_head"}
# What has another model_type, and is a llama in a GGUF (llama.cpp's converter makes it one), whose name files have.
_LLAMAS = ("mistral", "internlm3")
_BY = {"tensor": "layer", "layer": "layer", "layer_head": "head", "channel": "channel"}


def _bad(path, what):
    raise _octavo.BadData(f"{path}: {what}")


def _format(path, name) -> _octavo.KVFormat:
    """One of `-ctk`'s names: i8+rot, e4m3fn:layer."""
    plain, plus, rotated = str(name).partition("+")
    dtype, colon, suffix = plain.partition(":")
    suffix = suffix if colon else "token" if dtype == "i8" else ""
    if suffix not in _SUFFIXES or (plus and rotated != "rot"):
        _bad(path, f"{name!r} is no cache format")
    try:
        scale = {"scale_dtype": "f32" if suffix == "token32" else "f16"} if suffix.startswith("token") else {}
        return _octavo.KVFormat(dtype, _SUFFIXES[suffix], rotated=bool(plus), **scale)
    except (ValueError, TypeError) as error:
        raise _octavo.BadData(f"{path}: {name!r} is no cache format: {error}") from None


def _name(form: _octavo.KVFormat) -> str:
    """As files have it."""
    suffix = {"none": "", "tensor": ":tensor", "layer": ":layer", "layer_head": ":head", "channel": ":channel", "token_head": ":token"}[form.scale]
    if suffix == ":token" and form == _octavo.KVFormat(form.dtype, form.scale, rotated=form.rotated, scale_dtype="f32"):
        suffix = ":token32"
    return form.dtype + suffix + ("+rot" if form.rotated else "")


def is_static(form: _octavo.KVFormat) -> bool:
    """Whether the format's scales are given and not made by each write."""
    return form.scale in _BY


@dataclass(frozen=True)
class Calibration:
    """A file's numbers. formats: a (k, v) of KVFormat for every layer, None where the file doesn't say (version 1). numbers: of K and V, by "layer" [layers], "head"
    [layers, heads] and "channel" [layers, heads, dim], for e4m3fn; those that the file has. rotated: of K and V, whether they speak of rotated values. version: of
    octavo's part, 0 where a file has vLLM's form alone. model_type: Hugging Face's name of the model that it was made of, None where it has none."""
    path: str
    n_layers: int
    formats: tuple | None
    numbers: tuple
    rotated: tuple
    version: int = 0
    model_type: str | None = None

    def check_model(self, model_type: str, n_layers: int) -> None:
        """BadData where the file is of another model: by its number of layers, and by model_type, of a Hugging Face configuration of text, where it has one."""
        if self.n_layers != n_layers:
            _bad(self.path, f"is of {self.n_layers} layers; the model has {n_layers}")
        made_of, of = ("" if name is None else name.removesuffix("_text") for name in (self.model_type, model_type))   # GGUF's gemma3 is gemma3_text
        if made_of and made_of != of and not (made_of == "llama" and of in _LLAMAS):
            _bad(self.path, f"is of a model of type {self.model_type!r}; this model's is {model_type!r}")

    def scales(self, layer: int, side: int, form: _octavo.KVFormat) -> np.ndarray | None:
        """What KVPool.set_scale takes for a layer's K (side 0) or V in a format: float32, as the format counts its numbers. None for formats without static scales."""
        if not is_static(form):
            return None
        if self.rotated[side] != form.rotated:
            _bad(self.path, f"the scales of {'KV'[side]} were made for values kept {'rotated' if self.rotated[side] else 'as they are'}")
        numbers = self.numbers[side].get(_BY[form.scale])
        if numbers is None:
            _bad(self.path, f"has no numbers by {_BY[form.scale]} for {'KV'[side]}")
        # An e4m3fn scale serves e4m3fnuz doubled, and integers by the ratio of the largest values.
        factor = {"e4m3fnuz": 2.0, "i8": 448 / 127}.get(form.dtype, 1.0)
        chosen = numbers.max() if form.scale == "tensor" else numbers[layer]
        return np.atleast_1d(chosen * np.float32(factor)).astype(np.float32)

    def scales_in(self, engine: str, layer: int, kept: tuple) -> tuple:
        """The scales of a layer, (k, v), that an engine keeps in formats of its own, one scale a layer (None: a format without). NotImplementedError where the file has
        chosen other formats: they are not passed over."""
        if layer >= self.n_layers:
            _bad(self.path, f"is of {self.n_layers} layers; the model has a layer {layer}")
        for side, form in enumerate(kept):
            wanted = self.formats[layer][side] if self.formats is not None else form
            if wanted != form and (wanted.dtype, wanted.scale, form.dtype, form.scale) != ("e4m3fn", "layer", "e4m3fnuz", "layer"):   # the same, as gfx942 stores it
                raise NotImplementedError(f"octavo: {self.path}: {'KV'[side]} of layer {layer} is to be kept in {_name(wanted)}, and {engine} keeps it in {_name(form)}")
        found = (self.scales(layer, side, form) for side, form in enumerate(kept))
        return tuple(None if s is None else float(s[0]) for s in found)


def _side(path, ours, name, n_layers):
    side, found = ours.get(name), {}
    if not isinstance(side, dict) or "layer" not in side:
        _bad(path, f"octavo.{name}.layer is missing")
    for key, shape in (("layer", (n_layers,)), ("head", (n_layers, ours.get("heads"))), ("channel", (n_layers, ours.get("heads"), ours.get("dim")))):
        if key in side:
            try:
                numbers = np.asarray(side[key], np.float32)
            except (ValueError, TypeError, OverflowError):
                _bad(path, f"octavo.{name}.{key} is no array of numbers")
            if numbers.shape != shape or not (np.isfinite(numbers) & (numbers > 0)).all():
                _bad(path, f"octavo.{name}.{key} must be {shape} numbers that are finite and > 0")
            found[key] = numbers
    return found


def read_calibration(path) -> Calibration:
    """Reads a calibration file, of vLLM's form alone as well (then K and V share their numbers, the largest of all ranks). Raises BadData, OSError."""
    path = os.fspath(path)
    with open(path, encoding="utf-8") as file:
        try:
            root = json.load(file)
            dtype, factors, model_type = root["kv_cache"].get("dtype"), root["kv_cache"]["scaling_factor"], root.get("model_type")
            n_layers = len(factors["0"])
            shared = np.max([[float(rank[str(layer)]) for layer in range(n_layers)] for rank in factors.values()], axis=0).astype(np.float32)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise _octavo.BadData(f"{path}: no calibration file: {error!r}") from None
    if not n_layers or not (np.isfinite(shared) & (shared > 0)).all():
        _bad(path, "kv_cache.scaling_factor must be numbers that are finite and > 0")
    if dtype != "float8_e4m3fn":
        _bad(path, f"kv_cache.dtype is {dtype!r}; must be 'float8_e4m3fn'")
    if model_type is not None and not isinstance(model_type, str):
        _bad(path, f"model_type is {model_type!r}; must be a string")
    ours = root.get("octavo")
    if ours is None:
        return Calibration(path, n_layers, None, ({"layer": shared}, {"layer": shared}), (False, False), model_type=model_type)
    if not isinstance(ours, dict):
        _bad(path, "octavo is no object")
    version = ours.get("version")
    if type(version) is not int or version not in range(1, NEWEST_VERSION + 1):
        _bad(path, f"octavo.version is {version!r}; known are 1 to {NEWEST_VERSION}")
    formats = None
    if version >= 2:
        given = ours.get("formats")
        names = [given.get(side) if isinstance(given, dict) else None for side in "kv"]
        if any(not isinstance(side, list) or len(side) != n_layers for side in names):
            _bad(path, f"octavo.formats must have {n_layers} names for k and v")
        formats = tuple((_format(path, k), _format(path, v)) for k, v in zip(*names))
    rotated = ours.get("rotated", [False, False])
    if not isinstance(rotated, list) or [type(side) for side in rotated] != [bool, bool]:
        _bad(path, "octavo.rotated must be two of true and false")
    rotated = tuple(rotated)
    return Calibration(path, n_layers, formats, tuple(_side(path, ours, side, n_layers) for side in "kv"), rotated, version, model_type)
