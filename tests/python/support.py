"""What the tests of tools/python/fa3 share: the module itself, an interpreter that has what a test needs, and plain
attention in float64."""

import importlib.util
import math
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/python"))
import fa3  # noqa: E402

TORCH_PYTHON = ROOT / ".toolchain/torch/bin/python"  # made by tests/python/torch-env


def need(*modules):
    """Goes on if this Python has these modules; else in the one that FA3_PYTHON names, or that of torch-env, with the
    same arguments; else ends as skipped."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if not missing:
        return
    tried = os.environ.get("FA3_TEST_REACHED")
    other = os.environ.get("FA3_PYTHON") or (str(TORCH_PYTHON) if TORCH_PYTHON.exists() else None)
    if other and not tried:
        os.environ["FA3_TEST_REACHED"] = other
        os.execv(other, [other, "-B", *sys.argv])
    lacks = f"{tried or sys.executable} has no {' and no '.join(missing)}"
    print(f"SKIPPED: {lacks}; FA3_PYTHON may name a Python that has (tests/python/torch-env makes one)")
    sys.exit(77)


def refused(kind, text, call, *arguments, **named):
    """The call raises an exception of this kind whose message has this text."""
    try:
        call(*arguments, **named)
    except Exception as error:
        assert isinstance(error, kind) and text in str(error), f"{type(error).__name__}: {error}, not {text!r}"
    else:
        raise AssertionError(f"accepted, though {text}")


def attention(xp, q, k, v, causal, softmax_scale=None):
    """(o, lse) in the arrays' own precision, by plain operations that NumPy (xp) and torch (xp) both have. causal: as
    fa3.forward takes it. Each row must see a key."""
    heads, groups = q.shape[2], q.shape[2] // k.shape[2]
    kv = [h // groups for h in range(heads)]
    k, v = k[:, :, kv], v[:, :, kv]
    scale = 1 / math.sqrt(q.shape[3]) if softmax_scale is None else softmax_scale
    s = xp.einsum("bihd,bjhd->bhij", q, k) * scale
    rows, keys = q.shape[1], k.shape[1]
    first = keys - rows if causal in (True, "bottom_right") else 0
    visible = [[not causal or j <= i + first for j in range(keys)] for i in range(rows)]
    hidden = s.new_tensor(visible) == 0 if hasattr(s, "new_tensor") else ~xp.array(visible)
    s = xp.where(hidden, -math.inf, s)
    largest = s.amax(-1, keepdim=True) if hasattr(s, "amax") else s.max(-1, keepdims=True)
    p = xp.exp(s - largest)
    total = p.sum(-1)
    o = xp.einsum("bhij,bjhd->bihd", p / total[..., None], v)
    return o, xp.log(total) + largest[..., 0]
