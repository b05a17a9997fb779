"""libfa3.so through ctypes: the structs of include/fa3.h and a thin call for torch tensors.

Needs only the standard library; torch is imported by the functions that take its tensors.
"""

import ctypes
import math
import os
import pathlib

OK = 0
DTYPE = {"bf16": 1, "fp16": 2, "fp32": 3}
MASK = {"none": 0, "causal_top_left": 1, "causal_bottom_right": 2}
FLAG_DETERMINISTIC = 1
MAX_RANK = 5


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
    """A fa3_tensor for a torch tensor, with its strides."""
    import torch

    name = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[tensor.dtype]
    return make_tensor(tensor.data_ptr(), name, tensor.shape, tensor.stride())


class Library:
    def __init__(self, path=None):
        self.path = find_library(path)
        self.lib = lib = ctypes.CDLL(self.path)
        params, info = ctypes.POINTER(ForwardParams), ctypes.POINTER(KernelInfo)
        for name, result, arguments in (
            ("fa3_forward_check", ctypes.c_int, [params]),
            ("fa3_tensor_pack", ctypes.c_int, [ctypes.POINTER(Tensor)]),
            (
                "fa3_forward_workspace_size",
                ctypes.c_int,
                [params, ctypes.c_int32, ctypes.POINTER(ctypes.c_size_t)],
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
        ):
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        self.workspaces = {}

    def check(self, status, call):
        if status != OK:
            raise Fa3Error(
                f"{call}: {self.lib.fa3_status_string(status).decode()}: {self.lib.fa3_last_error_message().decode()}"
            )

    def params(self, q, k, v, o, lse=None, mask="none", softmax_scale=0.0, flags=0, kernel=None):
        """Parameters from five Tensor structs; kernel is a kernel's name, None lets the library choose."""
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
        )

    def kernels(self):
        """KernelInfo of every kernel of the build."""
        for index in range(self.lib.fa3_kernel_count()):
            info = KernelInfo(struct_size=ctypes.sizeof(KernelInfo))
            self.check(self.lib.fa3_kernel_info_at(index, ctypes.byref(info)), "fa3_kernel_info_at")
            yield info

    def kernel_info(self, params, multiprocessors=0, launch=0):
        """On a device of so many multiprocessors, 0: on the current context's."""
        info = KernelInfo(struct_size=ctypes.sizeof(KernelInfo))
        status = self.lib.fa3_forward_kernel_info(ctypes.byref(params), multiprocessors, launch, ctypes.byref(info))
        self.check(status, "fa3_forward_kernel_info")
        return info

    def workspace_size(self, params, multiprocessors=0):
        size = ctypes.c_size_t()
        status = self.lib.fa3_forward_workspace_size(ctypes.byref(params), multiprocessors, ctypes.byref(size))
        self.check(status, "fa3_forward_workspace_size")
        return size.value

    def preload(self):
        self.check(self.lib.fa3_preload(), "fa3_preload")

    def reference(self, params, threads=0):
        self.check(self.lib.fa3_reference_forward(ctypes.byref(params), threads), "fa3_reference_forward")

    def prepare(self, q, k, v, o, lse=None, mask="none", softmax_scale=0.0, kernel=None):
        """A function that enqueues the forward pass of these torch tensors, (batch, seqlen, heads, head_dim)
        in any strides, on torch's current stream. Preparing once keeps Python's share out of timed loops."""
        import torch

        params = self.params(
            torch_tensor(q),
            torch_tensor(k),
            torch_tensor(v),
            torch_tensor(o),
            torch_tensor(lse) if lse is not None else None,
            mask,
            softmax_scale,
            kernel=kernel,
        )
        stream = torch.cuda.current_stream(q.device).cuda_stream
        # Calls that may run at the same time need a workspace each: one a stream, as large as the largest call needs.
        needed = self.workspace_size(params, torch.cuda.get_device_properties(q.device).multi_processor_count)
        workspace = self.workspaces.get((q.device, stream))
        if workspace is None or workspace.numel() < needed:
            workspace = torch.empty(needed, dtype=torch.uint8, device=q.device)
            self.workspaces[q.device, stream] = workspace
        forward, reference, address = self.lib.fa3_forward, ctypes.byref(params), workspace.data_ptr()
        size = workspace.numel()

        def call(keep_alive=(params, q, k, v, o, lse, workspace)):
            status = forward(reference, address, size, stream)
            if status != OK:
                self.check(status, "fa3_forward")
            return o

        call.params = params
        return call

    def forward(self, q, k, v, o, lse=None, mask="none", softmax_scale=0.0, kernel=None):
        return self.prepare(q, k, v, o, lse, mask, softmax_scale, kernel)()
