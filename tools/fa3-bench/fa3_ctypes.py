"""libfa3.so through ctypes: the structs of include/fa3.h and thin calls for torch tensors.

Needs only the standard library; torch is imported by the functions that take its tensors. A library from before FP8
serves the forward pass in bf16 and fp16: what it does not know is zero in the parameters, and is not asked for.
"""

import ctypes
import math
import os
import pathlib

OK = 0
DTYPE = {"bf16": 1, "fp16": 2, "fp32": 3, "e4m3": 4}
TORCH_DTYPE = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "e4m3": "float8_e4m3fn"}
MASK = {"none": 0, "causal_top_left": 1, "causal_bottom_right": 2}
FLAG_DETERMINISTIC, FLAG_TWO_LEVEL = 1, 2
QUANTIZE_INCOHERENT, QUANTIZE_ROTARY_INTERLEAVED = 1, 2
SCALE_ROWS = 64  # of one block scale
TILE_KEYS = 16  # of one tile of V
MAX_RANK = 5
KERNEL_BACKWARD = 2

# The optional tensors of a call, in the order of the structs.
FORWARD_SCALES = ("q_scale", "k_scale", "v_scale", "o_scale", "v_mean", "lse_offset")
QUANTIZE_OPTIONAL = ("mean", "rotary_cos", "rotary_sin", "k_mean", "lse_offset")


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dim", ctypes.c_int64 * MAX_RANK),
        ("stride", ctypes.c_int64 * MAX_RANK),
    ]


class ForwardParams(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("flags", ctypes.c_uint64),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("mask", ctypes.c_int32),
        ("softmax_scale", ctypes.c_float),
        ("kernel", ctypes.c_char_p),
        *((name, Tensor) for name in FORWARD_SCALES),
    ]


class BackwardParams(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("flags", ctypes.c_uint64),
        *((name, Tensor) for name in ("q", "k", "v", "o", "lse", "dout", "dq", "dk", "dv")),
        ("mask", ctypes.c_int32),
        ("softmax_scale", ctypes.c_float),
        ("kernel", ctypes.c_char_p),
        ("dlse", Tensor),
    ]


class QuantizeParams(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("flags", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        *((name, Tensor) for name in ("x", "y", "scale", *QUANTIZE_OPTIONAL)),
        ("softmax_scale", ctypes.c_float),
        ("reserved", ctypes.c_int32),
    ]


class CombineParams(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("flags", ctypes.c_uint64),
        *((name, Tensor) for name in ("o_parts", "lse_parts", "o", "lse")),
    ]


class KernelInfo(ctypes.Structure):
    _fields_ = (
        [("struct_size", ctypes.c_size_t), ("name", ctypes.c_char * 64)]
        + [
            (name, ctypes.c_int32)
            for name in (
                "kind",
                "dtype",
                "head_dim",
                "head_dim_v",
                "causal",
                "block_q",
                "block_kv",
                "stages",
                "threads",
                "producer_registers",
                "consumer_registers",
                "shared_memory_bytes",
                "chosen",
                "launches",
                "grid",
                "multiprocessors",
            )
        ]
        + [("tiles", ctypes.c_int64), ("pieces", ctypes.c_int64)]
    )


class Fa3Error(RuntimeError):
    pass


def find_library(path=None):
    """The library named, in FA3_LIBRARY, in a build folder of this repository, or whatever the loader finds."""
    if path or os.environ.get("FA3_LIBRARY"):
        return str(path or os.environ["FA3_LIBRARY"])
    root = pathlib.Path(__file__).resolve().parents[2]
    built = sorted(root.glob("build*/src/libfa3.so"), key=lambda file: file.stat().st_mtime)
    return str(built[-1]) if built else "libfa3.so.0"


def make_tensor(data, dtype, dims, strides=None):
    """A fa3_tensor from numbers; without strides those of a packed one."""
    if strides is None:
        strides = [math.prod(max(n, 1) for n in dims[i + 1 :]) for i in range(len(dims))]
    tensor = Tensor(data=data, dtype=DTYPE[dtype], rank=len(dims))
    tensor.dim[: len(dims)], tensor.stride[: len(dims)] = dims, strides
    return tensor


def torch_tensor(tensor):
    """A fa3_tensor for a torch tensor, with its strides; for None an absent one."""
    import torch

    if tensor is None:
        return Tensor()
    name = {getattr(torch, theirs): ours for ours, theirs in TORCH_DTYPE.items()}[tensor.dtype]
    return make_tensor(tensor.data_ptr(), name, tensor.shape, tensor.stride())


def scale_dims(which, batch, heads, seqlen):
    """Dims of the scales of a (batch, seqlen, heads, head_dim) tensor. which: tensor, head or block."""
    blocks = (seqlen + SCALE_ROWS - 1) // SCALE_ROWS
    return {"tensor": (1, 1, 1), "head": (batch, heads, 1), "block": (batch, heads, blocks)}[which]


def tile_dims(batch, seqlen, heads, head_dim):
    """Dims of V as tiles."""
    return batch, heads, (seqlen + TILE_KEYS - 1) // TILE_KEYS, head_dim, TILE_KEYS


def tiles_of(v):
    """V of (batch, seqlen, heads, head_dim) in e4m3 as tiles, packed; keys beyond its length are 0. See fa3.h: row
    16 a + 8 c + r of a tile is column 16 a + 2 r + c, byte 4 q + 2 b + e of it key 8 b + 2 q + e."""
    import torch

    batch, seqlen, heads, head_dim = v.shape
    dims = tile_dims(batch, seqlen, heads, head_dim)
    padded = torch.zeros(batch, dims[2] * TILE_KEYS, heads, head_dim, dtype=torch.uint8, device=v.device)
    padded[:, :seqlen] = v.view(torch.uint8)
    parts = padded.view(batch, dims[2], 2, 4, 2, heads, head_dim // 16, 8, 2)  # batch, g, b, q, e, head, a, r, c
    return parts.permute(0, 5, 1, 6, 8, 7, 3, 2, 4).reshape(dims).view(torch.float8_e4m3fn)


class Library:
    def __init__(self, path=None):
        self.path = find_library(path)
        self.lib = lib = ctypes.CDLL(self.path)
        params, info = ctypes.POINTER(ForwardParams), ctypes.POINTER(KernelInfo)
        quantize, size = ctypes.POINTER(QuantizeParams), ctypes.POINTER(ctypes.c_size_t)
        backward, combine = ctypes.POINTER(BackwardParams), ctypes.POINTER(CombineParams)
        for name, result, arguments in (
            ("fa3_forward_check", ctypes.c_int, [params]),
            ("fa3_tensor_pack", ctypes.c_int, [ctypes.POINTER(Tensor)]),
            (
                "fa3_forward_workspace_size",
                ctypes.c_int,
                [params, ctypes.c_int32, size],
            ),
            ("fa3_forward", ctypes.c_int, [params, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]),
            ("fa3_reference_forward", ctypes.c_int, [params, ctypes.c_int]),
            ("fa3_forward_kernel_info", ctypes.c_int, [params, ctypes.c_int32, ctypes.c_int32, info]),
            ("fa3_kernel_count", ctypes.c_int, []),
            ("fa3_kernel_info_at", ctypes.c_int, [ctypes.c_int, info]),
            ("fa3_preload", ctypes.c_int, []),
            ("fa3_version", ctypes.c_int, []),
            ("fa3_status_string", ctypes.c_char_p, [ctypes.c_int]),
            ("fa3_last_error_message", ctypes.c_char_p, []),
            ("fa3_quantize_check", ctypes.c_int, [quantize]),
            ("fa3_quantize_workspace_size", ctypes.c_int, [quantize, size]),
            ("fa3_quantize", ctypes.c_int, [quantize, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]),
            ("fa3_reference_quantize", ctypes.c_int, [quantize]),
            ("fa3_combine_check", ctypes.c_int, [combine]),
            ("fa3_combine", ctypes.c_int, [combine, ctypes.c_void_p]),
            ("fa3_reference_combine", ctypes.c_int, [combine]),
            ("fa3_backward_check", ctypes.c_int, [backward]),
            ("fa3_backward_workspace_size", ctypes.c_int, [backward, size]),
            ("fa3_backward", ctypes.c_int, [backward, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]),
            ("fa3_backward_kernel_info", ctypes.c_int, [backward, ctypes.c_int32, ctypes.c_int32, info]),
            ("fa3_reference_backward", ctypes.c_int, [backward, ctypes.c_int]),
        ):
            if any(word in name for word in ("quantize", "backward", "combine")) and not hasattr(lib, name):
                continue  # a library from before FP8, from before the backward pass, or from before combinations
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        self.workspaces = {}

    def check(self, status, call):
        if status != OK:
            raise Fa3Error(
                f"{call}: {self.lib.fa3_status_string(status).decode()}: {self.lib.fa3_last_error_message().decode()}"
            )

    def params(self, q, k, v, o, lse=None, mask="none", softmax_scale=0.0, flags=0, kernel=None, **scales):
        """Parameters from Tensor structs; kernel is a kernel's name, None lets the library choose. scales: any of
        FORWARD_SCALES."""
        return ForwardParams(
            struct_size=ctypes.sizeof(ForwardParams),
            flags=flags,
            q=q,
            k=k,
            v=v,
            o=o,
            lse=lse or Tensor(),
            mask=MASK[mask],
            softmax_scale=softmax_scale,
            kernel=kernel.encode() if kernel else None,
            **scales,
        )

    def quantize_params(self, x, y, scale, flags=0, seed=0, softmax_scale=0.0, **optional):
        """Parameters from Tensor structs. optional: any of QUANTIZE_OPTIONAL."""
        size = ctypes.sizeof(QuantizeParams)
        return QuantizeParams(
            struct_size=size, flags=flags, seed=seed, x=x, y=y, scale=scale, softmax_scale=softmax_scale, **optional
        )

    def backward_params(self, *tensors, mask="none", softmax_scale=0.0, kernel=None, dlse=None, flags=0):
        """Parameters from Tensor structs: q, k, v, o, lse, dout, dq, dk, dv."""
        name = kernel.encode() if kernel else None
        size = ctypes.sizeof(BackwardParams)
        return BackwardParams(size, flags, *tensors, MASK[mask], softmax_scale, name, dlse or Tensor())

    def combine_params(self, o_parts, lse_parts, o, lse=None):
        """Parameters from Tensor structs."""
        return CombineParams(ctypes.sizeof(CombineParams), 0, o_parts, lse_parts, o, lse or Tensor())

    def kernels(self):
        """KernelInfo of every kernel of the build."""
        for index in range(self.lib.fa3_kernel_count()):
            info = KernelInfo(struct_size=ctypes.sizeof(KernelInfo))
            self.check(self.lib.fa3_kernel_info_at(index, ctypes.byref(info)), "fa3_kernel_info_at")
            yield info

    def kernel_info(self, params, multiprocessors=0):
        """Of the last launch, before which there may be passes; on a device of so many multiprocessors, 0: on the
        current context's."""
        info = KernelInfo(struct_size=ctypes.sizeof(KernelInfo))
        launch = 0
        while launch == 0 or launch < info.launches:
            status = self.lib.fa3_forward_kernel_info(ctypes.byref(params), multiprocessors, launch, ctypes.byref(info))
            self.check(status, "fa3_forward_kernel_info")
            launch += 1
        return info

    def backward_kernel(self, params, multiprocessors=0):
        """The name of the kernel that computes gradients; multiprocessors as for kernel_info."""
        info, launch = KernelInfo(struct_size=ctypes.sizeof(KernelInfo)), 0
        while info.kind != KERNEL_BACKWARD:
            status = self.lib.fa3_backward_kernel_info(
                ctypes.byref(params), multiprocessors, launch, ctypes.byref(info)
            )
            self.check(status, "fa3_backward_kernel_info")
            launch += 1
        return info.name.decode()

    def workspace_size(self, params, multiprocessors=0):
        size = ctypes.c_size_t()
        status = self.lib.fa3_forward_workspace_size(ctypes.byref(params), multiprocessors, ctypes.byref(size))
        self.check(status, "fa3_forward_workspace_size")
        return size.value

    def quantize_workspace_size(self, params):
        size = ctypes.c_size_t()
        status = self.lib.fa3_quantize_workspace_size(ctypes.byref(params), ctypes.byref(size))
        self.check(status, "fa3_quantize_workspace_size")
        return size.value

    def preload_for_torch(self):
        """The same in torch's context, which becomes current."""
        import torch

        torch.cuda.init()
        torch.zeros(1, device="cuda")
        self.preload()

    def preload(self):
        self.check(self.lib.fa3_preload(), "fa3_preload")

    def reference(self, params, threads=0):
        self.check(self.lib.fa3_reference_forward(ctypes.byref(params), threads), "fa3_reference_forward")

    def reference_backward(self, params, threads=0):
        self.check(self.lib.fa3_reference_backward(ctypes.byref(params), threads), "fa3_reference_backward")

    def reference_quantize(self, params):
        self.check(self.lib.fa3_reference_quantize(ctypes.byref(params)), "fa3_reference_quantize")

    def reference_combine(self, params):
        self.check(self.lib.fa3_reference_combine(ctypes.byref(params)), "fa3_reference_combine")

    def workspace(self, device, stream, needed):
        """Calls that may run at the same time need a workspace each: one a stream, as large as the largest needs."""
        import torch

        workspace = self.workspaces.get((device, stream))
        if workspace is None or workspace.numel() < needed:
            workspace = torch.empty(needed, dtype=torch.uint8, device=device)
            self.workspaces[device, stream] = workspace
        return workspace

    def enqueuer(self, name, params, needed, device, result, keep_alive):
        """A function that enqueues the call `name` of these parameters and returns `result`."""
        import torch

        stream = torch.cuda.current_stream(device).cuda_stream
        workspace = self.workspace(device, stream, needed)
        function, reference, address = getattr(self.lib, name), ctypes.byref(params), workspace.data_ptr()
        size = workspace.numel()

        def call(keep_alive=(params, workspace, *keep_alive)):
            status = function(reference, address, size, stream)
            if status != OK:
                self.check(status, name)
            return result

        call.params = params
        return call

    def prepare(self, q, k, v, o, lse=None, mask="none", softmax_scale=0.0, kernel=None, flags=0, **scales):
        """A function that enqueues the forward pass of these torch tensors, (batch, seqlen, heads, head_dim)
        in any strides, on torch's current stream. Preparing once keeps Python's share out of timed loops.
        scales: any of FORWARD_SCALES; v may be tiles."""
        import torch

        tensors = [torch_tensor(tensor) for tensor in (q, k, v, o, lse)]
        described = {name: torch_tensor(tensor) for name, tensor in scales.items()}
        params = self.params(*tensors, mask, softmax_scale, flags, kernel, **described)
        needed = self.workspace_size(params, torch.cuda.get_device_properties(q.device).multi_processor_count)
        return self.enqueuer("fa3_forward", params, needed, q.device, o, (q, k, v, o, lse, scales))

    def forward(self, q, k, v, o, lse=None, mask="none", softmax_scale=0.0, kernel=None, flags=0, **scales):
        return self.prepare(q, k, v, o, lse, mask, softmax_scale, kernel, flags, **scales)()

    def prepare_backward(self, q, k, v, o, lse, dout, dq, dk, dv, mask="none", **more):
        """The same for the backward pass: writes dq, dk and dv, which the call returns. more: softmax_scale, kernel,
        dlse, flags."""
        tensors = [torch_tensor(tensor) for tensor in (q, k, v, o, lse, dout, dq, dk, dv)]
        dlse = more.pop("dlse", None)
        params = self.backward_params(*tensors, mask=mask, dlse=torch_tensor(dlse), **more)
        size = ctypes.c_size_t()
        status = self.lib.fa3_backward_workspace_size(ctypes.byref(params), ctypes.byref(size))
        self.check(status, "fa3_backward_workspace_size")
        keep_alive = (q, k, v, o, lse, dout, dlse)
        return self.enqueuer("fa3_backward", params, size.value, q.device, [dq, dk, dv], keep_alive)

    def prepare_quantize(self, x, y, scale, flags=0, seed=0, softmax_scale=0.0, **optional):
        """The same for the quantization of x: writes y (as x, or tiles), scale, and of `optional` (QUANTIZE_OPTIONAL)
        mean and lse_offset. The call returns (y, scale)."""
        tensors = [torch_tensor(tensor) for tensor in (x, y, scale)]
        described = {name: torch_tensor(tensor) for name, tensor in optional.items()}
        params = self.quantize_params(*tensors, flags, seed, softmax_scale, **described)
        needed = self.quantize_workspace_size(params)
        return self.enqueuer("fa3_quantize", params, needed, x.device, (y, scale), (x, y, scale, optional))

    def prepare_combine(self, o_parts, lse_parts, o, lse=None):
        """The same for partial results, (parts, batch, seqlen, heads, head_dim) and (parts, batch, heads, seqlen):
        writes o and lse, and returns o."""
        import torch

        params = self.combine_params(*(torch_tensor(tensor) for tensor in (o_parts, lse_parts, o, lse)))
        stream, reference = torch.cuda.current_stream(o.device).cuda_stream, ctypes.byref(params)

        def call(keep_alive=(params, o_parts, lse_parts, o, lse)):
            self.check(self.lib.fa3_combine(reference, stream), "fa3_combine")
            return o

        return call


def forward_outputs(q):
    """Tensors for the forward pass of q to write: O, in bf16 if q is e4m3, and NaN until it is written; and LSE."""
    import torch

    batch, seqlen, heads, _ = q.shape
    dtype = torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype
    out = torch.full(q.shape, math.nan, dtype=dtype, device=q.device)
    return out, torch.empty(batch, heads, seqlen, dtype=torch.float32, device=q.device)


def quantize_outputs(x, scales="block", tiles=False):
    """Tensors for the quantization of x to write: y and scale."""
    import torch

    batch, seqlen, heads, head_dim = x.shape
    dims = tile_dims(*x.shape) if tiles else x.shape
    y = torch.empty(dims, dtype=torch.float8_e4m3fn, device=x.device)
    return y, torch.empty(scale_dims(scales, batch, heads, seqlen), dtype=torch.float32, device=x.device)


class Fp8Attention:
    """Attention in FP8 from bf16 or fp16 tensors, by four calls of the library: the three quantizations and the forward
    pass. Prepared once for its tensors, it may be called any number of times.

    scales: tensor, head or block. incoherent: the Hadamard transform of Q and K. mean: V without its mean over the
    sequence. tiles: V as tiles. on_cpu: the library's CPU reference instead of its kernels."""

    def __init__(self, library, q, k, v, o, lse=None, mask="none", softmax_scale=0.0, scales="block", incoherent=True,
                 mean=True, tiles=True, two_level=False, seed=1, on_cpu=False):  # fmt: skip
        import torch

        self.o = o
        (yq, sq), (yk, sk) = (quantize_outputs(x, scales) for x in (q, k))
        yv, sv = quantize_outputs(v, scales, tiles)
        v_mean = torch.empty(v.shape[0], v.shape[2], v.shape[3], dtype=torch.float32, device=v.device) if mean else None
        transform = QUANTIZE_INCOHERENT if incoherent else 0
        jobs = [((q, yq, sq, transform, seed), {}), ((k, yk, sk, transform, seed), {}), ((v, yv, sv), {"mean": v_mean})]
        attend = (yq, yk, yv, o, lse, mask, softmax_scale, None, FLAG_TWO_LEVEL if two_level else 0)
        named = {"q_scale": sq, "k_scale": sk, "v_scale": sv, "v_mean": v_mean}
        if on_cpu:
            self.keep_alive = jobs, attend, named
            self.calls = self.reference_calls(library, *self.keep_alive)
        else:
            self.calls = [library.prepare_quantize(*job, **optional) for job, optional in jobs]
            self.calls.append(library.prepare(*attend, **named))
            self.params = self.calls[-1].params

    @staticmethod
    def reference_calls(library, jobs, attend, named):
        t = torch_tensor
        calls = []
        for (x, y, scale, *rest), optional in jobs:
            described = {name: t(tensor) for name, tensor in optional.items()}
            params = library.quantize_params(t(x), t(y), t(scale), *rest, **described)
            calls.append(lambda params=params: library.reference_quantize(params))
        q, k, v, o, lse, mask, softmax_scale, kernel, flags = attend
        described = {name: t(tensor) for name, tensor in named.items()}
        params = library.params(t(q), t(k), t(v), t(o), t(lse), mask, softmax_scale, flags, kernel, **described)
        return [*calls, lambda: library.reference(params)]

    def __call__(self):
        for call in self.calls:
            call()
        return self.o
