"""Numbers that Python and C++ (tests/support/goldens.h) make alike, so that golden files need not hold them.

Everything is a pure function of (name, element index): a 64-bit hash, from it a double in [-1, 1), from that a weight.
All steps are exact in float64, so both languages get the same bits.
"""
import math

import numpy as np

MASK = (1 << 64) - 1
GOLDEN_RATIO = 0x9E3779B97F4A7C15


def mix_key(key, value):
    """The function of this name in core/runtime/rng.h. `value` is an int or an array of uint64."""
    with np.errstate(over="ignore"):
        x = np.uint64(key) + np.uint64(GOLDEN_RATIO) * (np.asarray(value, dtype=np.uint64) + np.uint64(1))
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def name_key(name):
    """mix_key(0, FNV-1a of the name's bytes)."""
    fnv = 0xCBF29CE484222325
    for byte in name.encode():
        fnv = ((fnv ^ byte) * 0x100000001B3) & MASK
    return int(mix_key(0, fnv))


def bits(name, count):
    """[count] uint64: the hash of each index under this name."""
    return mix_key(name_key(name), np.arange(count, dtype=np.uint64))


def uniform(name, count):
    """[count] doubles in [-1, 1): the upper 53 bits x 2^-52, minus 1."""
    return (bits(name, count) >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0


def weight(name, shape):
    """Initial weight `name`, row-major. Norm weights lie around 1, biases around 0, and none is 0 or 1 throughout, so
    that no term of the model drops out. The ranges are powers of two: the product is exact."""
    u = uniform(name, math.prod(shape))
    if name.endswith("norm.weight"):
        u = 1.0 + 0.25 * u
    elif name.endswith(".bias"):
        u = 0.125 * u
    else:
        u = 0.25 * u
    return u.reshape(shape)


PROJECTIONS = 16
SAMPLES = 64
FULL_SIZE = 512
# Elements of this root mean square count as noise: errors are |a - b| / (|b| + FLOOR sqrt(n)), as in relative_error().
FLOOR = 1e-4


def tensor_check(name, values):
    """What a golden file keeps of a tensor: its L2 norm, its products with 16 fixed vectors, and single elements (all
    of them up to 512, otherwise 64)."""
    flat = np.ascontiguousarray(values, dtype=np.float64).reshape(-1)
    size = flat.size
    if size <= FULL_SIZE:
        indices = np.arange(size)
    else:
        indices = np.unique(bits("samples." + name, SAMPLES) % np.uint64(size)).astype(np.int64)
    return {
        "size": size,
        "norm": float(np.sqrt(math.fsum(flat * flat))),
        "projections": [math.fsum(flat * uniform(f"projection.{k}", size)) for k in range(PROJECTIONS)],
        "indices": "all" if size <= FULL_SIZE else indices.tolist(),
        "samples": flat[indices].tolist(),
    }
