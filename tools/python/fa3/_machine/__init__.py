"""Whether this machine can run the kernels: its driver and its GPUs, as libcuda.so.1 tells of them."""

from __future__ import annotations

import ctypes
from typing import List, NamedTuple, Optional

from .. import _abi

OLDEST_DRIVER = 12000  # CUDA 12.0
HOPPER = (9, 0)
MULTIPROCESSORS, MAJOR, MINOR = 16, 75, 76  # CU_DEVICE_ATTRIBUTE_*


class Device(NamedTuple):
    """problem: why it cannot run the kernels, or None."""

    ordinal: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    problem: Optional[str]


class Machine(NamedTuple):
    """driver: as in "12.4", the CUDA version; None if there is none. problem: why no device can run the kernels, or
    None if one can."""

    driver: Optional[str]
    devices: List[Device]
    problem: Optional[str]


def call(driver: ctypes.CDLL, name: str, *arguments) -> None:
    """A driver call; RuntimeError if it fails."""
    status = getattr(driver, name)(*arguments)
    if status:
        raise RuntimeError(f"{name}: CUDA error {status}")


def device(driver: ctypes.CDLL, ordinal: int) -> Device:
    handle, name, memory, value = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t(), ctypes.c_int()
    call(driver, "cuDeviceGet", ctypes.byref(handle), ordinal)
    call(driver, "cuDeviceGetName", name, len(name), handle)
    call(driver, "cuDeviceTotalMem_v2", ctypes.byref(memory), handle)

    def attribute(number: int) -> int:
        call(driver, "cuDeviceGetAttribute", ctypes.byref(value), number, handle)
        return value.value

    capability = attribute(MAJOR), attribute(MINOR)
    problem = None
    if capability != HOPPER:
        problem = f"compute capability {capability[0]}.{capability[1]}; the kernels need 9.0 (Hopper)"
    return Device(ordinal, name.value.decode(), capability, attribute(MULTIPROCESSORS), memory.value, problem)


def machine() -> Machine:
    """Initialises the driver, and makes no context."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return Machine(None, [], f"there is no driver: {error}")
    version = ctypes.c_int()
    try:
        call(driver, "cuDriverGetVersion", ctypes.byref(version))
        said = f"{version.value // 1000}.{version.value % 1000 // 10}"
        if version.value < OLDEST_DRIVER:
            return Machine(said, [], f"the driver is of CUDA {said}, older than 12.0")
        count = ctypes.c_int()
        call(driver, "cuInit", 0)
        call(driver, "cuDeviceGetCount", ctypes.byref(count))
        devices = [device(driver, ordinal) for ordinal in range(count.value)]
    except RuntimeError as error:
        return Machine(said if version.value else None, [], str(error))
    problem = None
    if not any(found.problem is None for found in devices):
        problem = "no device can run the kernels" if devices else "the driver finds no GPU"
    return Machine(said, devices, problem)


def is_available() -> bool:
    """Whether the kernels can run here: there is a libfa3.so, a driver of CUDA 12.0 or newer, and a Hopper GPU among
    those that this process sees. It initialises the driver, as torch.cuda.is_available() may, and makes no context.
    `python -m fa3` says why not."""
    try:
        _abi.library()
    except (OSError, _abi.Fa3Error):
        return False
    return machine().problem is None
