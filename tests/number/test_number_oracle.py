"""src/number against NumPy and ml-dtypes, an implementation that is not ours.

All codes decoded, all bf16 and f16 inputs encoded to every format, f32 inputs over every exponent and sign x every tie
a format can have x its neighbours, and random bit patterns; each as built, under flush-to-zero, and under -ffast-math.
ml-dtypes does not saturate, so the oracle clamps to the largest finite value first; that is our law, stated here once
more from the numbers of doc/NUMERICS.md and not from the code.
"""

import subprocess

import ml_dtypes
import numpy as np
import pytest

# name -> (type of the oracle, largest finite value, distance to the next value above if the format went on)
ORACLES = {
    "e4m3fn": (ml_dtypes.float8_e4m3fn, 448.0, 32.0),
    "e4m3fnuz": (ml_dtypes.float8_e4m3fnuz, 240.0, 16.0),
    "e5m2": (ml_dtypes.float8_e5m2, 57344.0, 8192.0),
    "i8": (np.int8, 127.0, 1.0),
    "f16": (np.float16, 65504.0, 32.0),
    "bf16": (ml_dtypes.bfloat16, (2.0 - 2.0**-7) * 2.0**127, 2.0**120),
}
EIGHT_BIT = ("e4m3fn", "e4m3fnuz", "e5m2", "i8")
FLOAT_8 = ("e4m3fn", "e4m3fnuz", "e5m2")
# How a NaN of either sign is written.
NAN_CODES = {"e4m3fn": (0x7F, 0xFF), "e4m3fnuz": (0x80, 0x80), "e5m2": (0x7F, 0xFF), "i8": (0, 0)}


def code_type(name):
    return np.uint16 if name in ("f16", "bf16") else np.uint8


@pytest.fixture(params=["plain", "ftz", "fast-math"])
def build(request):
    """(program, mode) of each way the same numbers must come out."""
    option = "--program-fast-math" if request.param == "fast-math" else "--program"
    program = request.config.getoption(option)
    assert program, f"{option} is needed"
    return program, "ftz" if request.param == "ftz" else "plain"


def run(build, tmp_path, operation, dtype, data, out_type, scale="1"):
    """Gives (raw output as out_type, the printed counts)."""
    program, mode = build
    source, target = tmp_path / "in", tmp_path / "out"
    data.tofile(source)
    done = subprocess.run([program, operation, dtype, scale, mode, source, target], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("no flush-to-zero mode on this machine")
    assert done.returncode == 0, f"{operation} {dtype}: exit status {done.returncode}: {done.stderr}"
    return np.fromfile(target, out_type), [int(word) for word in done.stdout.split()]


def expected_codes(name, values):
    """The codes of f32 values, by the oracle."""
    oracle, largest, _ = ORACLES[name]
    nan = np.isnan(values)
    with np.errstate(all="ignore"):
        if name == "i8":
            codes = np.clip(np.rint(np.where(nan, np.float32(0), values)), -127, 127).astype(np.int8).view(np.uint8)
        elif name in FLOAT_8:
            codes = np.clip(values, np.float32(-largest), np.float32(largest)).astype(oracle).view(np.uint8)
        else:
            codes = values.astype(oracle).view(np.uint16)
    if name in NAN_CODES:
        positive, negative = NAN_CODES[name]
        codes = np.where(nan, np.where(np.signbit(values), negative, positive), codes).astype(np.uint8)
    return codes


def expected_counts(name, values):
    """[saturated, NaNs]: rounded in steps of the top binade that never ends, what lies beyond the largest value?"""
    _, largest, step = ORACLES[name]
    nan = np.isnan(values)
    count = 0
    for chunk in np.array_split(np.abs(values[~nan]), max(1, values.size // 1_000_000)):
        count += np.count_nonzero(np.rint(chunk.astype(np.float64) / step) * step > largest)
    return [int(count), int(np.count_nonzero(nan))]


def assert_same_codes(name, values, got, expected):
    assert got.size == expected.size
    if name in ("f16", "bf16"):
        # A NaN's payload is the implementation's choice: quiet, and of the same sign, is the law.
        nan = np.isnan(values)
        quiet = np.uint16(0x7E00 if name == "f16" else 0x7FC0)
        assert np.all(got[nan] & quiet == quiet) and np.array_equal(got[nan] >> 15, np.signbit(values[nan]))
        got, expected, values = got[~nan], expected[~nan], values[~nan]
    wrong = np.flatnonzero(got != expected)
    shown = [(hex(values[i].view(np.uint32)), hex(got[i]), hex(expected[i])) for i in wrong[:8]]
    assert wrong.size == 0, f"{name}: {wrong.size} of {got.size} differ; (input, ours, oracle): {shown}"


_f32_inputs = {}


def f32_inputs(config):
    """Every sign and exponent x 11 leading mantissa bits x {0, 1, all ones} below: every tie of every format here (at
    most 10 mantissa bits are kept) with both f32 neighbours, each subnormal's too; then random patterns."""
    key = config.getoption("--seed"), config.getoption("--random-count")
    if key not in _f32_inputs:
        leading = np.arange(1 << 20, dtype=np.uint32) << np.uint32(12)
        grid = (leading[:, None] | np.array([0, 1, 0xFFF], np.uint32)).ravel()
        random = np.random.default_rng(key[0]).integers(0, 1 << 32, key[1], dtype=np.uint32)
        _f32_inputs[key] = np.concatenate([grid, random]).view(np.float32)
    return _f32_inputs[key]


_expected = {}


def expected_of_inputs(config, name):
    if name not in _expected:
        values = f32_inputs(config)
        _expected[name] = expected_codes(name, values), expected_counts(name, values)
    return _expected[name]


@pytest.mark.parametrize("name", ORACLES)
def test_decodes_every_code(build, tmp_path, name):
    codes = np.arange(1 << (8 * code_type(name)().itemsize)).astype(code_type(name))
    got, _ = run(build, tmp_path, "decode", name, codes, np.uint32)
    expected = codes.view(ORACLES[name][0]).astype(np.float32)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(got.view(np.float32)), nan)
    assert np.array_equal(got[~nan], expected.view(np.uint32)[~nan])
    if name != "e4m3fnuz":  # whose NaN has no sign
        assert np.array_equal(got[nan] >> 31, codes[nan] >> (8 * codes.itemsize - 1))
    if name in ("bf16", "i8"):
        return
    assert np.all(got[nan] & 0x400000), "a NaN comes out quiet"


@pytest.mark.parametrize("name", ORACLES)
def test_decode_then_encode_is_identity(build, tmp_path, name):
    codes = np.arange(1 << (8 * code_type(name)().itemsize)).astype(code_type(name))
    values, _ = run(build, tmp_path, "decode", name, codes, np.float32)
    keep = ~np.isnan(values)
    if name in FLOAT_8:
        keep &= ~np.isinf(values)  # an e5m2 infinity is read but never written
    if name == "i8":
        keep &= values != -128
    got, counts = run(build, tmp_path, "encode", name, values[keep], code_type(name))
    assert np.array_equal(got, codes[keep])
    assert counts == [np.count_nonzero(np.isinf(values[keep])), 0]


@pytest.mark.parametrize("source", ["bf16", "f16"])
@pytest.mark.parametrize("name", EIGHT_BIT)
def test_encodes_every_16_bit_value(build, tmp_path, name, source):
    codes = np.arange(1 << 16).astype(np.uint16)
    ours, _ = run(build, tmp_path, "decode", source, codes, np.float32)
    got, counts = run(build, tmp_path, "encode", name, ours, np.uint8)
    values = codes.view(ORACLES[source][0]).astype(np.float32)
    # NumPy's conversions may drop a NaN's sign; the code's own top bit is the sign.
    nan = np.isnan(values)
    values[nan] = np.copysign(np.float32(np.nan), np.where(codes[nan] >> 15, -1, 1).astype(np.float32))
    assert_same_codes(name, values, got, expected_codes(name, values))
    assert counts == expected_counts(name, values)


@pytest.mark.parametrize("name", ORACLES)
def test_encodes_f32_ties_and_random_patterns(request, build, tmp_path, name):
    values = f32_inputs(request.config)
    expected, expected_count = expected_of_inputs(request.config, name)
    got, counts = run(build, tmp_path, "encode", name, values, code_type(name))
    assert_same_codes(name, values, got, expected)
    assert counts == expected_count


def rng_of(request, salt):
    return np.random.default_rng([request.config.getoption("--seed"), salt])


def test_division_is_ieee(request, build, tmp_path):
    """Random patterns, and operands near both ends of the range, where subnormals come in."""
    rng = rng_of(request, 1)
    pairs = rng.integers(0, 1 << 32, (1_000_000, 2), dtype=np.uint32)
    ends = rng.integers(0, 1 << 32, (1_000_000, 2), dtype=np.uint32)
    ends[:500_000] &= np.uint32(0x80FFFFFF)  # exponents 0 and 1 above, below or on both sides
    ends[250_000:500_000, 1] = rng.integers(0, 1 << 32, 250_000, dtype=np.uint32)
    # Quotients around 2^-126 .. 2^-150.
    exponent = rng.integers(1, 120, 500_000).astype(np.uint32)
    below = exponent + rng.integers(124, 136, 500_000).astype(np.uint32)
    ends[500_000:, 0] = ends[500_000:, 0] & np.uint32(0x807FFFFF) | exponent << np.uint32(23)
    ends[500_000:, 1] = ends[500_000:, 1] & np.uint32(0x807FFFFF) | below << np.uint32(23)
    special = [0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000]
    special = np.array(special, np.uint32)
    special = np.concatenate([special, special | np.uint32(0x80000000)])
    pairs = np.concatenate([pairs, ends, np.stack(np.meshgrid(special, special), -1).reshape(-1, 2)])
    got, _ = run(build, tmp_path, "divide", "-", pairs, np.uint32)
    with np.errstate(all="ignore"):
        expected = np.divide(pairs[:, 0].view(np.float32), pairs[:, 1].copy().view(np.float32))
    nan = np.isnan(expected)
    subnormal = (np.abs(expected) < 2.0**-126) & (expected != 0)
    assert np.count_nonzero(subnormal) > 100_000, "the inputs no longer reach the subnormals"
    assert np.array_equal(np.isnan(got.view(np.float32)), nan)
    wrong = np.flatnonzero((got != expected.view(np.uint32)) & ~nan)
    assert wrong.size == 0, [(hex(pairs[i, 0]), hex(pairs[i, 1]), hex(got[i])) for i in wrong[:8]]


@pytest.mark.parametrize("name", EIGHT_BIT)
def test_encode_divides_by_the_scale(request, build, tmp_path, name):
    """A reciprocal would give another byte for some of these."""
    rng = rng_of(request, 2)
    values = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    near = rng.standard_normal(200_000).astype(np.float32) * np.float32(30)
    for scale in (np.float32(0.07), np.float32(3e-6), np.float32(1e-40), np.float32(2.5e38), np.float32(1 / 3)):
        # Products with a tie of the format land on or beside it after the division.
        ties = (rng.integers(-512, 512, 200_000) / 16).astype(np.float32)
        with np.errstate(all="ignore"):
            data = np.concatenate([values, near * scale, ties * scale])
            quotients = data / scale
        nan = np.isnan(data)
        quotients[nan] = data[nan]
        got, counts = run(build, tmp_path, "encode", name, data, np.uint8, scale=repr(float(scale)))
        assert_same_codes(name, quotients, got, expected_codes(name, quotients))
        assert counts == expected_counts(name, quotients)


def next_f16_up(scale):
    """Least f16 that is not below the scale, at most 65504."""
    with np.errstate(all="ignore"):
        code = scale.astype(np.float16)
        below = code.astype(np.float64) < scale.astype(np.float64)
        code = np.where(below, np.nextafter(code, np.float16(np.inf)), code)
    return np.minimum(code, np.float16(65504)).astype(np.float32)


@pytest.mark.parametrize("mode", ["plain", "ftz"])
@pytest.mark.parametrize("scale_dtype", ["f32", "f16"])
@pytest.mark.parametrize("name", EIGHT_BIT)
def test_dynamic_scale(request, tmp_path, name, scale_dtype, mode):
    rng = rng_of(request, 3)
    rows, dim = 3000, 80
    magnitude = (2.0 ** rng.uniform(-40, 30, (rows, 1))).astype(np.float32)
    data = rng.standard_normal((rows, dim)).astype(np.float32) * magnitude
    data[0] = 0
    data[1] = np.inf
    data[2] = np.nan
    data[3, 5], data[3, 6] = np.inf, -np.inf
    data[4, 7] = np.nan
    data[5] = np.float32(1e-42)
    data[6] = np.finfo(np.float32).max
    data[7, :] = -0.0
    build = request.config.getoption("--program"), mode
    row_type = np.dtype([("scale", "<f4"), ("codes", "u1", dim)])
    got, counts = run(build, tmp_path, "dynamic", name, data, row_type, scale=f"{scale_dtype}:{dim}")
    largest = np.float32(ORACLES[name][1])
    amax = np.max(np.where(np.isfinite(data), np.abs(data), np.float32(0)), axis=1)
    scale = np.maximum(amax / largest, np.float32(1e-6))
    if scale_dtype == "f16":
        scale = next_f16_up(scale)
        # No finite element is cut off by the rounding of its scale.
        held = scale < 65504
        assert np.all(amax[held].astype(np.float64) <= scale[held].astype(np.float64) * float(largest))
    nan_rows = np.isnan(data).any(axis=1) if name == "i8" else np.zeros(rows, bool)
    scale[nan_rows] = np.nan
    assert np.array_equal(got["scale"], scale, equal_nan=True)
    assert np.all(got["codes"][nan_rows] == 0)
    with np.errstate(all="ignore"):
        quotients = data / scale[:, None]
    kept = quotients[~nan_rows].ravel()
    assert_same_codes(name, kept, got["codes"][~nan_rows].ravel(), expected_codes(name, kept))
    nans = np.count_nonzero(np.isnan(data))
    assert counts == [expected_counts(name, kept)[0], nans, np.count_nonzero(nan_rows)]
