"""Names of other packages that fa3 has no computation for: they can be imported, and say so when they are used."""

from __future__ import annotations

from typing import Any, Dict, NoReturn


class Refusal:
    """A function or class of another package, by its name there."""

    def __init__(self, name: str):
        self.__name__ = name
        self.__doc__ = f"{name} is not computed by fa3: using it is a NotImplementedError."

    def __call__(self, *arguments: Any, **named: Any) -> NoReturn:
        raise NotImplementedError(f"{self.__name__} is not computed by fa3, which stands in the place of its package")

    def __getitem__(self, grid: Any) -> Any:  # of a kernel of Triton
        return self

    @property
    def apply(self) -> Any:  # of an autograd.Function
        return self


def add_refusals(names: Dict[str, Any], refused: str) -> None:
    """names: of a module, which gets those in `refused`, parted by spaces."""
    for name in refused.split():
        names[name] = Refusal(f"{names['__name__'].replace('fa3._drop_in.', 'fa3.')}.{name}")
