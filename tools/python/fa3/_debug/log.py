"""What fa3 does, on stderr, where the environment has FA3_LOG=1: each call of the library with its arguments, the
kernels that it launches, and how they share the work."""

from __future__ import annotations

import os
import sys
from typing import Any

ASKED = os.environ.get("FA3_LOG", "0") not in ("", "0")


def say(text: str) -> None:
    print(f"fa3: {text}", file=sys.stderr, flush=True)


def _argument(name: str, x: Any, dtypes: Any, masks: Any) -> str:
    """ "" if it is not given, or is the default."""
    if hasattr(x, "rank"):
        dims = ", ".join(map(str, x.dim[: x.rank]))
        return f"{name} {dtypes.get(x.dtype, x.dtype)} ({dims})" if x.rank else ""
    if name == "mask":
        x = masks[x] if x else None
    return f"{name} {x.decode() if isinstance(x, bytes) else x}" if x and "reserved" not in name else ""


def call(what: str, params: Any, dtypes: Any, masks: Any) -> None:
    """what: the function's name; dtypes, masks: their names by the library's numbers."""
    fields = [(name, getattr(params, name)) for name, *_ in params._fields_ if name not in ("struct_size", "schedule")]
    said = [_argument(name, x, dtypes, masks) for name, x in fields]
    say(f"{what}: {', '.join(x for x in said if x)}")


def launches(found: Any) -> None:
    for x in found:
        say(f"  {x.name}: grid {x.grid}, tiles {x.tiles}, pieces {x.pieces}, {x.multiprocessors} multiprocessors")
