"""libfa3.so through ctypes: the structs of fa3.h, its calls, and its errors as exceptions. Standard library only.

The structs are for addresses and numbers; `fa3.forward` and its like fill them in from tensors and arrays.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import types
from typing import Any, Iterator, List, Optional, Sequence, Tuple

from ._debug import log as _log

ABI_VERSION = 1
MAX_RANK = 5
SCALE_ROWS = 64  # of one block scale
LATENT_SCALE_COLUMNS = 128  # of one scale, in a latent cache of e4m3
TILE_KEYS = 16  # of one tile of V
FORWARD_WORKSPACE_BYTES = 64

OK, INVALID_ARGUMENT, UNSUPPORTED = 0, 1, 2
NO_CONTEXT, OUT_OF_MEMORY = 5, 9
# As torch names them. int32 is for lengths and page numbers only, int64 for slots and positions.
DTYPES = {"bfloat16": 1, "float16": 2, "float32": 3, "float8_e4m3fn": 4, "float8_e5m2": 5, "int32": 6, "int64": 7}
MASKS = {"none": 0, "causal_top_left": 1, "causal_bottom_right": 2, "window": 3, "chunk": 4}
_DTYPES, _MASKS = ({number: name for name, number in names.items()} for names in (DTYPES, MASKS))
FLAG_DETERMINISTIC, FLAG_TWO_LEVEL, FLAG_BATCH_INVARIANT, FLAG_CENTERED_K, FLAG_ACCUMULATE = 1, 2, 4, 8, 16
FLAGS = {"FLAG_DETERMINISTIC": (1, ("forward", "backward")), "FLAG_TWO_LEVEL": (2, ("forward",)),
         "FLAG_BATCH_INVARIANT": (4, ("forward",)), "FLAG_CENTERED_K": (8, ("backward",)),
         "FLAG_ACCUMULATE": (16, ("backward",))}  # fmt: skip
QUANTIZE_INCOHERENT, QUANTIZE_ROTARY_INTERLEAVED = 1, 2
APPEND_ROTARY_INTERLEAVED = 1
KERNEL_FORWARD, KERNEL_BACKWARD, KERNEL_PASS = 1, 2, 3


# ---- errors ----


class Fa3Error(RuntimeError):
    """The library refused a call, or the driver did. status: the fa3_status."""

    def __init__(self, message: str, status: int = 0):
        super().__init__(message)
        self.status = status


class InvalidArgument(Fa3Error, ValueError):
    """An argument contradicts fa3.h or another argument; the message names it."""


class Unsupported(Fa3Error, NotImplementedError):
    """Well-formed, but no kernel of this library does it."""


ERRORS = {INVALID_ARGUMENT: InvalidArgument, UNSUPPORTED: Unsupported}


# ---- structs ----


class Tensor(ctypes.Structure):
    """fa3_tensor. Without fields it is absent."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dim", ctypes.c_int64 * MAX_RANK),
        ("stride", ctypes.c_int64 * MAX_RANK),
    ]


def make_tensor(data: int, dtype: str, dims: Sequence[int], strides: Optional[Sequence[int]] = None) -> Tensor:
    """A fa3_tensor from numbers; without strides those of a packed one. dtype: of DTYPES."""
    if strides is None:
        strides, step = [0] * len(dims), 1
        for i in reversed(range(len(dims))):
            strides[i], step = step, step * max(dims[i], 1)
    tensor = Tensor(data=data, dtype=DTYPES[dtype], rank=len(dims))
    tensor.dim[: len(dims)], tensor.stride[: len(dims)] = dims, strides
    return tensor


class Params(ctypes.Structure):
    """The parameters of a call, whose name is `call`. struct_size is filled in; fields that are not given are zero."""

    call = ""

    def __init__(self, **fields: Any):
        for name, (flag, calls) in FLAGS.items():
            if fields.get("flags", 0) & flag and self.call not in calls and self.call in ("forward", "backward"):
                raise InvalidArgument(f"flags has {name}, which is not for fa3_{self.call}, but fa3_{calls[0]}",
                                      INVALID_ARGUMENT)  # fmt: skip
        if fields.get("mask") == MASKS["window"] and not fields.keys() & {"window_left", "window_right"}:
            raise InvalidArgument("mask is window, but window_left and window_right are not given: as 0 they would let "
                                  "each query see one key", INVALID_ARGUMENT)  # fmt: skip
        super().__init__(struct_size=ctypes.sizeof(self), **fields)

    @classmethod
    def tensors(cls) -> Tuple[str, ...]:
        """The names of those that it has, in the struct's order."""
        return tuple(name for name, kind, *_ in cls._fields_ if kind is Tensor)


def _tensors(names: str) -> List[Any]:
    return [(name, Tensor) for name in names.split()]


SCALES = "q_scale k_scale v_scale o_scale v_mean lse_offset"
INTEGERS = "cu_seqlens_q cu_seqlens_k seqused_q seqused_k leftpad_k page_table cache_batch_idx"
_HEAD = [("struct_size", ctypes.c_size_t), ("flags", ctypes.c_uint64)]
_HOW = [("mask", ctypes.c_int32), ("softmax_scale", ctypes.c_float), ("kernel", ctypes.c_char_p)]


class ForwardParams(Params):
    call = "forward"
    _fields_ = (
        _HEAD
        + _tensors("q k v o lse")
        + _HOW
        + _tensors(SCALES)
        + [(name, ctypes.c_int32) for name in ("window_left", "window_right", "max_seqlen_q", "max_seqlen_k")]
        + _tensors("sinks")
        + _tensors(INTEGERS)
        + [("schedule", ctypes.c_void_p), ("schedule_bytes", ctypes.c_size_t)]
        + [("softcap", ctypes.c_float), ("reserved", ctypes.c_int32)]
        + _tensors("alibi_slopes qv")
    )


class BackwardParams(Params):
    call = "backward"
    _fields_ = (
        _HEAD
        + _tensors("q k v o lse dout dq dk dv")
        + _HOW
        + _tensors("dlse")
        + [(name, ctypes.c_int32) for name in ("window_left", "window_right")]
        + _tensors("sinks dsinks cu_seqlens_q cu_seqlens_k seqused_q seqused_k")
        + [(name, ctypes.c_int32) for name in ("max_seqlen_q", "max_seqlen_k")]
        + [("softcap", ctypes.c_float), ("reserved", ctypes.c_int32)]
        + _tensors("alibi_slopes q_scale k_scale v_scale v_mean lse_offset")
    )


class QuantizeParams(Params):
    call = "quantize"
    _fields_ = (
        _HEAD
        + [("seed", ctypes.c_uint64)]
        + _tensors("x y scale mean rotary_cos rotary_sin k_mean lse_offset")
        + [("softmax_scale", ctypes.c_float), ("reserved", ctypes.c_int32)]
    )


class AppendParams(Params):
    call = "append"
    _fields_ = (
        _HEAD
        + _tensors("k v k_cache v_cache cache_seqlens cu_seqlens_new seqused_new")
        + _tensors("page_table cache_batch_idx slot_mapping q q_out rotary_cos rotary_sin rotary_positions")
        + _tensors("k_scale v_scale q_scale")
    )


class CombineParams(Params):
    call = "combine"
    _fields_ = _HEAD + _tensors("o_parts lse_parts o lse")


CALLS = {struct.call: struct for struct in (ForwardParams, BackwardParams, QuantizeParams, AppendParams, CombineParams)}
NEED_NO_WORKSPACE = ("append", "combine")


class KernelInfo(ctypes.Structure):
    _fields_ = (
        [("struct_size", ctypes.c_size_t), ("name", ctypes.c_char * 64)]
        + [
            (name, ctypes.c_int32)
            for name in (
                "kind dtype head_dim head_dim_v causal block_q block_kv stages threads producer_registers "
                "consumer_registers shared_memory_bytes chosen launches grid multiprocessors"
            ).split()
        ]
        + [("tiles", ctypes.c_int64), ("pieces", ctypes.c_int64)]
    )

    def fields(self) -> types.SimpleNamespace:
        """The same as Python's own numbers and text."""
        values = {name: getattr(self, name) for name, *_ in self._fields_[1:]}
        return types.SimpleNamespace(**{**values, "name": self.name.decode()})


# ---- the library ----


def find_library(path: Optional[str] = None) -> str:
    """`path`, or what FA3_LIBRARY names, or the libfa3.so beside this file or its folder, or what the loader knows."""
    if path or os.environ.get("FA3_LIBRARY"):
        return str(path or os.environ["FA3_LIBRARY"])
    folder = pathlib.Path(__file__).resolve().parent
    names = (f"libfa3.so.{ABI_VERSION}", "libfa3.so")
    beside = [place / name for place in (folder, folder.parent) for name in names]
    return next((str(file) for file in beside if file.is_file()), names[0])


class Library:
    """One libfa3.so. Several may be used side by side; those from before a call was added lack it, and say so."""

    def __init__(self, path: Optional[str] = None):
        self.path = find_library(path)
        try:
            self.lib = lib = ctypes.CDLL(self.path)
        except OSError as error:
            raise OSError(f"libfa3.so cannot be loaded ({error}); FA3_LIBRARY may name it") from None
        self.raw = ctypes.CDLL(self.path)  # the same functions, with arguments as they are given
        self.repeated: dict = {}  # of _frameworks/repeated.py
        lib.fa3_status_string.restype = lib.fa3_last_error_message.restype = ctypes.c_char_p
        if hasattr(lib, "fa3_abi_version") and lib.fa3_abi_version() != ABI_VERSION:
            raise Fa3Error(f"{self.path} has ABI version {lib.fa3_abi_version()}, this module is for {ABI_VERSION}")
        i, n, p = ctypes.c_int32, ctypes.c_size_t, ctypes.c_void_p
        size, info = ctypes.POINTER(n), ctypes.POINTER(KernelInfo)
        self._declare("fa3_kernel_info_at", ctypes.c_int, info)
        self._declare("fa3_forward_schedule_size", ctypes.POINTER(ForwardParams), i, size)
        self._declare("fa3_forward_schedule", ctypes.POINTER(ForwardParams), p, n, p)
        for call, struct in CALLS.items():
            params = ctypes.POINTER(struct)
            self._declare(f"fa3_{call}_check", params)
            self._declare(f"fa3_{call}", params, *([p] if call in NEED_NO_WORKSPACE else [p, n, p]))
            self._declare(f"fa3_{call}_workspace_size", params, *([i] if call == "forward" else []), size)
            self._declare(f"fa3_{call}_kernel_info", params, i, i, info)
            self._declare(f"fa3_reference_{call}", params, *([i] if call in ("forward", "backward") else []))

    def _declare(self, name, *arguments):
        if hasattr(self.lib, name):
            getattr(self.lib, name).argtypes = arguments

    def _call(self, name, *arguments):
        function = getattr(self.lib, name, None)
        if function is None:
            raise Unsupported(f"{self.path} has no {name}", UNSUPPORTED)
        status = function(*arguments)
        if status != OK:
            what, why = self.lib.fa3_status_string(status).decode(), self.lib.fa3_last_error_message().decode()
            raise ERRORS.get(status, Fa3Error)(f"{name}: {what}: {why}", status)

    def version(self) -> str:
        number = self.lib.fa3_version()
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def preload(self) -> None:
        """Loads every kernel that the library chooses itself into the current CUDA context."""
        self._call("fa3_preload")

    def check(self, params: Params) -> None:
        """Raises what the call would; nothing runs, and no GPU is needed."""
        self._call(f"fa3_{params.call}_check", ctypes.byref(params))

    def workspace_size(self, params: Params, multiprocessors: int = 0) -> int:
        """Bytes that `enqueue` needs, on a device of so many multiprocessors; 0: the current context's."""
        if params.call in NEED_NO_WORKSPACE:
            return 0
        size = ctypes.c_size_t()
        device = [multiprocessors] if params.call == "forward" else []
        self._call(f"fa3_{params.call}_workspace_size", ctypes.byref(params), *device, ctypes.byref(size))
        return size.value

    def enqueue(self, params: Params, workspace: Optional[int], workspace_bytes: int, stream: Optional[int]) -> None:
        """Enqueues the call on a CUDA stream of the current context. Addresses are those of device memory."""
        if _log.ASKED:
            self._say(f"fa3_{params.call}", params)
        space = [] if params.call in NEED_NO_WORKSPACE else [workspace, workspace_bytes]
        self._call(f"fa3_{params.call}", ctypes.byref(params), *space, stream)

    def schedule_size(self, params: ForwardParams, multiprocessors: int = 0) -> int:
        """Bytes of a schedule for these lengths; 0 if the call needs none. multiprocessors: as for workspace_size."""
        size = ctypes.c_size_t()
        self._call("fa3_forward_schedule_size", ctypes.byref(params), multiprocessors, ctypes.byref(size))
        return size.value

    def enqueue_schedule(self, params: ForwardParams, schedule: Optional[int], schedule_bytes: int,
                         stream: Optional[int]) -> None:  # fmt: skip
        """Enqueues what plans the lengths, once for the calls that then have `schedule` in their params."""
        if _log.ASKED:
            self._say("fa3_forward_schedule", params)
        self._call("fa3_forward_schedule", ctypes.byref(params), schedule, schedule_bytes, stream)

    def reference(self, params: Params, threads: int = 0) -> None:
        """The same on the CPU; all addresses are the host's. threads, 0 for one a core: of forward and backward."""
        if _log.ASKED:
            _log.call(f"fa3_reference_{params.call}", params, _DTYPES, _MASKS)
        more = [threads] if params.call in ("forward", "backward") else []
        self._call(f"fa3_reference_{params.call}", ctypes.byref(params), *more)

    def _say(self, what: str, params: Params) -> None:
        """For FA3_LOG: the call, and what it launches, as far as the library tells."""
        _log.call(what, params, _DTYPES, _MASKS)
        if hasattr(self.lib, f"fa3_{params.call}_kernel_info"):
            _log.launches(self.launches(params))

    def launches(self, params: Params, multiprocessors: int = 0) -> List[types.SimpleNamespace]:
        """What a forward or backward call would launch, in order, as fields of fa3_kernel_info. Data is not looked at.
        multiprocessors: as for workspace_size."""
        found: list = []
        info = KernelInfo(struct_size=ctypes.sizeof(KernelInfo))
        while not found or len(found) < info.launches:
            where = (multiprocessors, len(found), ctypes.byref(info))
            self._call(f"fa3_{params.call}_kernel_info", ctypes.byref(params), *where)
            found.append(info.fields())
        return found

    def kernel_info(self, params: Params, multiprocessors: int = 0) -> types.SimpleNamespace:
        """Of the launch that computes, among the passes before and after it."""
        launches = self.launches(params, multiprocessors)
        return next((info for info in launches if info.kind != KERNEL_PASS), launches[-1])

    def kernels(self) -> Iterator[types.SimpleNamespace]:
        """fa3_kernel_info of every kernel of the build."""
        for index in range(self.lib.fa3_kernel_count()):
            info = KernelInfo(struct_size=ctypes.sizeof(KernelInfo))
            self._call("fa3_kernel_info_at", index, ctypes.byref(info))
            yield info.fields()


_loaded: Optional[Library] = None


def load(path: Optional[str] = None) -> Library:
    """The library that all functions of this module call from now on: the one at `path`, or by `find_library`. They
    do the latter themselves when they first need it."""
    global _loaded
    _loaded = Library(path)
    return _loaded


def library() -> Library:
    """The library that is loaded; it is found first if there is none."""
    return _loaded or load()
