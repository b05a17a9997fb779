"""The library's calls on torch tensors and NumPy arrays, those of _forward.py and _backward.py apart: outputs are
allocated, parameters filled in, and the call runs by the kernels where the tensors are on a GPU, otherwise by the
reference."""

from __future__ import annotations

import functools
import sys
from typing import NamedTuple, Optional

from . import _abi
from ._debug import checks as _checks


def is_torch(x) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def dtype_name(dtype) -> str:
    """float32, for torch.float32, for a NumPy dtype or scalar type, and for its name."""
    return str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype).split(".")[-1]


@functools.lru_cache(maxsize=None)
def _known_dtype(dtype):
    """Its name, if it is one of the library's; else None."""
    name = dtype_name(dtype)
    return name if name in _abi.DTYPES else None


def _taken(name, x):
    """Which dtypes are, instead of this one."""
    if name in _abi.INTEGERS.split():
        return "must be int32"
    if name in ("q", "k", "v", "o", "out", "dout", "dq", "dk", "dv", "qv", "k_cache", "v_cache", "x"):
        wide = dtype_name(x.dtype) == "float64" and not is_torch(x)  # what NumPy makes unless told otherwise
        return "must be bfloat16, float16 or float8_e4m3fn, on the CPU also float32" + (
            f": give {name}.astype('float32')" if wide else "")  # fmt: skip
    return f"must be one of {', '.join(_abi.DTYPES)}"


def describe(name, x) -> _abi.Tensor:
    """A fa3_tensor with x's strides; for None an absent one."""
    if x is None:
        return _abi.Tensor()
    dtype = _known_dtype(x.dtype)
    if dtype is None:
        raise ValueError(f"{name}.dtype is {dtype_name(x.dtype)}, {_taken(name, x)}")
    if x.ndim > _abi.MAX_RANK:
        raise ValueError(f"{name} has {x.ndim} dimensions, at most {_abi.MAX_RANK} are possible")
    if is_torch(x):
        if x.is_neg():
            raise ValueError(f"{name} has torch's negative bit, so its memory has its numbers with the other sign: "
                             f"give {name}.resolve_neg()")  # fmt: skip
        return _abi.make_tensor(x.data_ptr(), dtype, x.shape, x.stride())
    if not x.dtype.isnative:
        raise ValueError(f"{name}.dtype is {x.dtype!r}, must be of this machine's byte order")
    if any(stride % x.itemsize for stride in x.strides):
        raise ValueError(f"{name}.strides are {x.strides}, must be multiples of an element's {x.itemsize} bytes")
    # Those of an empty array may all be 0, which would not do for outputs.
    strides = [stride // x.itemsize for stride in x.strides] if x.size else None
    return _abi.make_tensor(x.ctypes.data, dtype, x.shape, strides)


class NumPyArrays:
    """On the CPU, by the reference."""

    device = "numpy"

    def empty(self, shape, dtype):
        import numpy

        try:
            dtype = numpy.dtype(dtype)
        except TypeError:  # a name that is none of NumPy's own
            try:
                import ml_dtypes
            except ImportError:
                raise ImportError(f"NumPy has no {dtype}: it needs the package ml_dtypes") from None
            dtype = numpy.dtype(getattr(ml_dtypes, dtype))
        return numpy.empty(tuple(shape), dtype)

    def run(self, params):
        _abi.library().reference(params)

    def plan(self, params):
        """No schedule, as the reference does not look at it."""
        return self.empty((0,), "uint8")


class TorchTensors:
    """On a CPU by the reference, on a CUDA device by the kernels, on the device's current stream."""

    def __init__(self, device):
        self.device = device

    def empty(self, shape, dtype):
        import torch

        return torch.empty(tuple(shape), dtype=getattr(torch, dtype_name(dtype)), device=self.device)

    def run(self, params):
        library = _abi.library()
        if self.device.type == "cpu":
            return library.reference(params)
        # The workspace is freed when this returns, and then torch gives it to later work on the same stream only.
        self._enqueue(params, library.workspace_size, library.enqueue)

    def plan(self, params):
        """Its schedule; on a CPU none, as the reference does not look at it."""
        library = _abi.library()
        if self.device.type == "cpu":
            return self.empty((0,), "uint8")
        return self._enqueue(params, library.schedule_size, library.enqueue_schedule)

    def _enqueue(self, params, size_of, enqueue):
        """The memory that the call got, as much as it asked for."""
        import torch

        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream(self.device).cuda_stream
            size = size_of(params, multiprocessors(self.device.index))
            space = torch.empty(size, dtype=torch.uint8, device=self.device)
            call = functools.partial(enqueue, params, space.data_ptr(), size, stream)
            try:
                call()
                return space
            except _abi.Fa3Error as error:
                if error.status != _abi.NO_CONTEXT:
                    raise
            # A thread, one of autograd's for example, in which torch's context is not current yet: now it is.
            torch.zeros(1, device=self.device)
            call()
            return space


@functools.lru_cache(maxsize=None)
def multiprocessors(index) -> int:
    import torch

    return torch.cuda.get_device_properties(index).multi_processor_count


# Arguments that calls write to.
WRITTEN = frozenset(("out", "dq", "dk", "dv", "k_cache", "v_cache", "q_out"))


def check(needed, optional=None):
    """That these, by their names, are arrays of one kind, in one place, with strides; optional ones may be None."""
    first = None
    for name, x in {**needed, **(optional or {})}.items():
        if x is None and name not in needed:
            continue
        is_tensor = is_torch(x)
        if x is None:
            raise TypeError(f"{name} is absent (None), must be a torch tensor or a NumPy array")
        if not is_tensor and not hasattr(x, "__array_interface__"):
            raise TypeError(f"{name} is {type(x).__name__}, must be a torch tensor or a NumPy array")
        if first is None:
            first, kind, first_is_tensor = name, type(x).__name__, is_tensor
            device = x.device if first_is_tensor else None
        elif is_tensor != first_is_tensor:
            raise TypeError(f"{name} is {type(x).__name__}, but {first} is {kind}")
        if is_tensor and x.is_nested:
            raise NotImplementedError(f"{name} is a nested tensor: fa3 takes packed ones with their cu_seqlens")
        if is_tensor and x.layout != sys.modules["torch"].strided:
            raise NotImplementedError(f"{name}.layout is {x.layout}, must be torch.strided")
        if is_tensor and name in WRITTEN and not sys.modules["torch"].compiler.is_compiling() and x.is_neg():
            raise ValueError(f"{name} has torch's negative bit, and fa3 writes to no such tensor")
        if is_tensor and x.device != device:  # an op with one on the device meta would compute nothing
            raise ValueError(f"{name}.device is {x.device}, but {first}.device is {device}")


def place_of(**arrays):
    """The place of all these arrays, by their names; None is no array."""
    found, first = None, None
    for name, x in arrays.items():
        if x is None:
            continue
        if is_torch(x):
            place = TorchTensors(x.device)
            if x.device.type not in ("cpu", "cuda"):
                raise ValueError(f"{name}.device is {x.device}, must be a CPU or CUDA device")
        else:
            place = NumPyArrays()
        if found is None:
            found, first = place, name
        elif place.device != found.device:
            raise ValueError(f"{name}.device is {place.device}, but {first}.device is {found.device}")
    return found


def scale_dims(which: str, batch: int, heads: int, seqlen: int) -> tuple:
    """Dims of the scales of a (batch, seqlen, heads, head_dim) tensor. which: tensor, head or block."""
    blocks = (seqlen + _abi.SCALE_ROWS - 1) // _abi.SCALE_ROWS
    dims = {"tensor": (1, 1, 1), "head": (batch, heads, 1), "block": (batch, heads, blocks)}
    if which not in dims:
        raise ValueError(f"scales is {which!r}, must be tensor, head or block")
    return dims[which]


def tile_dims(batch: int, seqlen: int, heads: int, head_dim: int) -> tuple:
    """Dims of V as tiles."""
    return batch, heads, (seqlen + _abi.TILE_KEYS - 1) // _abi.TILE_KEYS, head_dim, _abi.TILE_KEYS


# ---- calls: what the public functions check and name is resolved here to the library's numbers ----


class Quantized(NamedTuple):
    """What `quantize` makes of x. y: e4m3, as x or as tiles; x is y times scale, plus mean, if there is one."""

    y: object
    scale: object
    mean: Optional[object]
    lse_offset: Optional[object]


def quantize(x, scales, tiles, mean, flags, seed, rotary_cos, rotary_sin, k_mean, softmax_scale):
    inputs = {"x": x, "rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "k_mean": k_mean}
    place = place_of(**inputs)
    if x.ndim != 4:
        raise ValueError(f"x has {x.ndim} dimensions, must have 4: batch, seqlen, heads, head_dim")
    batch, seqlen, heads, head_dim = x.shape
    made = Quantized(
        place.empty(tile_dims(*x.shape) if tiles else x.shape, "float8_e4m3fn"),
        place.empty(scale_dims(scales, batch, heads, seqlen), "float32"),
        place.empty((batch, heads, head_dim), "float32") if mean else None,
        place.empty((batch, heads, seqlen), "float32") if k_mean is not None else None,
    )
    described = {name: describe(name, tensor) for name, tensor in {**inputs, **made._asdict()}.items()}
    place.run(_abi.QuantizeParams(flags=flags, seed=seed, softmax_scale=softmax_scale, **described))
    if 0 in x.shape:  # for the library there is nothing to write
        made.scale[...] = 1
        if mean:
            made.mean[...] = 0
    return made


APPENDED = _abi.AppendParams.tensors()


def append_output(q, q_scale):
    """dtype of what becomes of q."""
    return dtype_name(q.dtype) if q_scale is None else "float8_e4m3fn"


def append(flags, **tensors):
    """Those of fa3_append_params, by name; the caches and q_out are written to."""
    place = place_of(**tensors)
    if _checks.ASKED and _checks.wanted(next(x for x in tensors.values() if x is not None)):
        _checks.appended(tensors)
    place.run(_abi.AppendParams(flags=flags, **{name: describe(name, x) for name, x in tensors.items()}))


def combine(o_parts, lse_parts, out_dtype=None, out=None):
    """(o, lse). out: where o is written, or new memory."""
    place = place_of(o_parts=o_parts, lse_parts=lse_parts, out=out)
    o = out
    if o is None:
        o = place.empty(o_parts.shape[1:], dtype_name(o_parts.dtype if out_dtype is None else out_dtype))
    lse = place.empty(lse_parts.shape[1:], "float32")
    tensors = {"o_parts": o_parts, "lse_parts": lse_parts, "o": o, "lse": lse}
    place.run(_abi.CombineParams(**{name: describe(name, x) for name, x in tensors.items()}))
    return o, lse
