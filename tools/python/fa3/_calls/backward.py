"""The backward pass: `fa3.backward`'s arguments as the library's numbers, its gradients, and the call. Nothing here
reads what a tensor holds."""

from __future__ import annotations

from .. import _abi, _arrays
from . import documents as _documents
from . import forward as _forward

# What the backward pass has of the forward pass's tensors.
ALL_TENSORS = tuple(name for name in _abi.BackwardParams.tensors() if name in _forward.ALL_TENSORS)
SCALES = tuple(name for name in ALL_TENSORS if name in _forward.SCALES)
TENSORS = tuple(name for name in ALL_TENSORS if name not in SCALES)
COLUMNS = 256  # of q or v, at most
FLAGS = _abi.FLAG_DETERMINISTIC | _abi.FLAG_CENTERED_K


def without_gradients(**tensors):
    """Those names of `forward`'s tensors with which it has no backward pass."""
    return [name for name in tensors if name not in (*ALL_TENSORS, "schedule")]


def outputs(dout, q, k, v):
    """(dims, dtype's name) of dq, dk and dv: those of e4m3 have dout's dtype, and that of v as tiles has k's rows."""
    dtype = _arrays.dtype_name((dout if _arrays.dtype_name(q.dtype) == "float8_e4m3fn" else q).dtype)
    v_dims = (*k.shape[:3], v.shape[3]) if v.ndim == 5 else tuple(v.shape)
    return [(dims, dtype) for dims in (tuple(q.shape), tuple(k.shape), v_dims)]


def too_wide(q, v):
    """Which head dimension has no backward pass, and how large it is; or None."""
    for name, x in (("q", q), ("v", v)):
        if x.ndim and x.shape[-1] > COLUMNS:
            return f"{name}.shape[-1] ({'head_dim' if name == 'q' else 'head_dim_v'}) {x.shape[-1]}, above {COLUMNS}"
    return None


def backward_params(arrays, gradients, mask, softmax_scale, flags=0, kernel=None, window=(0, 0), maxima=(None, None),
                    softcap=0.0, **tensors):  # fmt: skip
    """arrays: all inputs by name, gradients likewise; tensors: of TENSORS and SCALES those that are given."""
    numbers = _forward.numbers(arrays["q"], arrays["k"], window, maxima, tensors)
    described = {name: _arrays.describe(name, x) for name, x in {**arrays, **tensors, **gradients}.items()}
    how = {"mask": mask, "softmax_scale": softmax_scale, "flags": flags, "kernel": kernel and kernel.encode()}
    return _abi.BackwardParams(**how, softcap=softcap, **numbers, **described)


def backward(dout, q, k, v, o, lse, dlse, mask, softmax_scale, flags=0, kernel=None, window=(0, 0),
             maxima=(None, None), softcap=0.0, with_dsinks=False, into=None, **tensors):  # fmt: skip
    """(dq, dk, dv), and with_dsinks dsinks. into: where they are written, by these names; those that are not in it come
    into new memory. tensors: by name, those that are given."""
    arrays = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "dout": dout, "dlse": dlse}
    place = _arrays.place_of(**arrays, **tensors)
    _forward.check_numbers(q, k, mask, window, maxima, tensors)
    wanted = dict(zip(("dq", "dk", "dv"), outputs(dout, q, k, v)))
    if with_dsinks:
        wanted["dsinks"] = tensors["sinks"].shape, tensors["sinks"].dtype
    into = into or {}
    gradients = {name: into[name] if name in into else place.empty(*how) for name, how in wanted.items()}
    how = (mask, softmax_scale, flags, kernel, window, maxima, softcap)
    params = backward_params(arrays, gradients, *how, **tensors)
    # The library leaves rows of no sequence alone. No host knows where they are, but it may know that there are none.
    for name, side in (("dq", "q"), ("dk", "k"), ("dv", "k")):
        sums = tensors.get(f"cu_seqlens_{side}")
        if sums is not None and not _documents.cover(sums, gradients[name], getattr(params, f"max_seqlen_{side}")):
            gradients[name][...] = 0
    place.run(params)
    return tuple(gradients.values())
