"""fa3 in the places of other packages for a program that is not edited: `python -m fa3 --as NAMES PROGRAM ...`, and as
a plugin of vLLM, by which the workers that it starts have it, too."""

from __future__ import annotations

import os
import runpy
import sys
from typing import Sequence

from ._drop_in import install


def run(names: str, program: str, arguments: Sequence[str] = ()) -> None:
    """Runs a program as Python would, after `fa3.install` of each of the names, which are parted by commas. program: a
    file, or -m, with a module's name as the first of the arguments. Processes that it starts have FA3_INSTALL in their
    environment, which `import fa3` reads."""
    for name in names.split(","):
        install.install(name.strip())  # type: ignore[arg-type]
    os.environ["FA3_INSTALL"] = names
    if program == "-m":
        if not arguments:
            raise ValueError("-m has no module's name behind it")
        sys.argv = list(arguments)
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    sys.argv = [program, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
    runpy.run_path(program, run_name="__main__")


def plugin() -> None:
    """For vLLM, in each of its processes (entry points vllm.general_plugins): `import fa3` has installed what
    FA3_INSTALL names, and without that nothing changes."""
