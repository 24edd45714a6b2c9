"""``asyncstate.operators`` in a clone: another name for the top-level package ``operators``. Not in the wheel.

Owns: the name, for the package and for every module below it, and no code. In the wheel the files of ``operators/``
themselves are ``asyncstate/operators/``, so that installing asyncstate does not claim the name ``operators``.

Invariant: no module is loaded twice. ``asyncstate.operators.X is operators.X``, so ``isinstance`` holds and one process
can unpickle what another has pickled, whichever name each of them has imported.

This is the only module of asyncstate that may import ``operators``. Of asyncstate, only ``sql`` and ``relational``
import it, which stand above all else: to the rest the arrow is a name for users, not a dependency.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

import operators
from operators import *  # noqa: F403  # what type checkers see; running programs see the package itself

_PREFIX = __name__ + "."


class _SameModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``asyncstate.operators.a.b`` as the module ``operators.a.b``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(_PREFIX):
            return None
        name = f"{operators.__name__}.{fullname.removeprefix(_PREFIX)}"
        if importlib.util.find_spec(name) is None:
            return None  # Python's own error then has the requested name
        return importlib.machinery.ModuleSpec(fullname, self, loader_state=name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(spec.loader_state)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The module has already run. Python has just put the spec of the other name on it; restore its own."""
        other = module.__spec__
        assert other is not None
        module.__spec__ = other.loader_state


if not hasattr(operators, "KeyedProcess"):
    raise ImportError(
        "asyncstate.operators is the folder operators/ of the clone that asyncstate was imported from, but `import "
        f"operators` finds {operators.__file__ or list(operators.__path__)}. Rename that one, put the clone before it "
        "on the path, or install asyncstate from its wheel, which does not use that name"
    )
sys.meta_path.insert(0, _SameModules())
sys.modules[__name__] = operators
