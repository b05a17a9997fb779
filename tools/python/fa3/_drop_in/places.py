"""Modules of fa3 in the places of other packages' modules, for Python's import system: what `import`,
importlib.util.find_spec and importlib.metadata find by their names there."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import re
import sys
import types


def _normal(name):
    """A distribution's name as all that mean the same have it."""
    return re.sub(r"[-_.]+", "-", name).lower()


class Distribution(importlib.metadata.Distribution):
    """One that has a name, a version and a package, and no files."""

    def __init__(self, name, version, package):
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        self.texts = {"METADATA": metadata, "top_level.txt": f"{package}\n"}

    def read_text(self, filename):
        return self.texts.get(filename)

    def locate_file(self, path):
        raise FileNotFoundError(f"{path}: fa3 is in the place of this package, and has no files of it")


class Finder:
    """The first that `import` asks. Modules whose package is loaded, or that are in none, are put into their places at
    once; the others when their package is loaded, which fa3 does not do."""

    def __init__(self):
        self.modules = {}  # by the names of their places
        self.spares = {}  # likewise, for where the package itself has none
        self.distributions = {}  # by their names, as `_normal` has them
        self.before = {}  # what was loaded in a place that it has taken

    def put(self, name, module, inner):
        """inner: the names of the modules of the package `name`, if it is one, that are the same module."""
        for place in (name, *(f"{name}.{x}" for x in inner)):
            self.modules[place] = module
        if inner:
            package = name.rpartition(".")[0]
            path = getattr(sys.modules.get(package), "__path__", ()) if package else None
            module.__path__ = self._folders(name, path)
        for place, module in sorted(self.modules.items()):  # packages before what is in them
            parent, _, child = place.rpartition(".")
            if not parent or parent in sys.modules:
                if sys.modules.get(place) not in (None, module):
                    self.before[place] = sys.modules[place]
                sys.modules[place] = module
                if parent:
                    setattr(sys.modules[parent], child, module)

    def take(self, places):
        """Puts back what was there before, or nothing."""
        for place in places:
            module = self.modules.pop(place, None) or self.spares.pop(place, None)
            if module is None:
                continue
            parent, _, child = place.rpartition(".")
            if sys.modules.get(place) is module:
                del sys.modules[place]
            if getattr(sys.modules.get(parent), child, None) is module:
                delattr(sys.modules[parent], child)
            if place in self.before:
                sys.modules[place] = self.before.pop(place)
                if parent in sys.modules:
                    setattr(sys.modules[parent], child, sys.modules[place])

    def _folders(self, name, path):
        """Those of the package of this name, if it is there: its modules that fa3 has nothing for, flash_attn.layers
        for example, are imported from them."""
        spec = self._elsewhere(name, path)
        return list(spec.submodule_search_locations or ()) if spec else []

    def _elsewhere(self, name, path):
        specs = (x.find_spec(name, path) for x in sys.meta_path if x is not self and hasattr(x, "find_spec"))
        return next((spec for spec in specs if spec is not None), None)

    def find_spec(self, name, path=None, target=None):
        if name in self.modules:
            module = self.modules[name]
            if getattr(module, "__path__", None) == []:
                module.__path__ = self._folders(name, path)
            return importlib.machinery.ModuleSpec(name, self, origin=module.__file__)
        if name in self.spares and self._elsewhere(name, path) is None:
            return importlib.machinery.ModuleSpec(name, self, is_package=hasattr(self.spares[name], "__path__"))
        inside = any(place.startswith(f"{name}.") for place in self.modules)
        if inside and self._elsewhere(name, path) is None:  # the package is not there: an empty one
            return importlib.machinery.ModuleSpec(name, None, is_package=True)
        return None

    def create_module(self, spec):
        return None  # one of the import system's, which exec_module replaces

    def exec_module(self, module):
        name = module.__name__
        sys.modules[name] = self.modules[name] if name in self.modules else self.spares[name]

    def find_distributions(self, context=importlib.metadata.DistributionFinder.Context()):
        return (x for name, x in self.distributions.items() if context.name is None or name == _normal(context.name))


finder = Finder()


def put(name, module, inner, distribution, spares):
    """distribution: the name of that which is asked for `module`'s version, or None. spares: {name: module, or None for
    an empty package}, which count where nothing else is found by that name."""
    if finder not in sys.meta_path:
        sys.meta_path.insert(0, finder)
    finder.put(name, module, inner)
    for place, spare in spares.items():
        if place not in finder.spares:
            finder.spares[place] = spare or _package(place, module)
    if distribution:
        finder.distributions[_normal(distribution)] = Distribution(distribution, module.__version__, name)


def _package(name, module):
    package = types.ModuleType(name, f"A place for modules of fa3, as {module.__name__} has taken that of {name}.")
    package.__path__, package.__version__ = [], getattr(module, "__version__", "")
    return package


def take(name, module, inner, distribution, spares):
    """Undoes `put` with the same arguments."""
    finder.take((*spares, *(f"{name}.{x}" for x in inner), name))
    vars(module).pop("__path__", None)
    finder.distributions.pop(_normal(distribution or ""), None)
    if not finder.modules and finder in sys.meta_path:
        sys.meta_path.remove(finder)
