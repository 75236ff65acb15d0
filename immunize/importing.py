"""A quick start and end of the commands: nobody waits for what Lightning imports and a run does not use.

Of torchmetrics Lightning asks for two classes and the version. Its `__init__` and its plots import torchvision,
scipy.signal, matplotlib and whatever else is installed and has metrics, half of the seconds that Lightning takes. Of
`torch._dynamo`, the compiler behind `torch.compile` with sympy and a second of imports, Lightning asks for one class,
PyTorch's optimizers for two functions, torchvision, which timm imports, for one of its `utils` and DDP for two of its
parts, all without a meaning before something is compiled. PyTorch imports CUDA's bindings where they are installed, GPU
or not. Here these modules are executed when somebody asks for another name, or for another module within the compiler.

At the end of a command Python would search a million objects for garbage, and CUDA's libraries clear up, a second or
more, and 100 MiB more of memory than the run took. The system does that for every process at once.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.abc
import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

OBJECTS = 10_000
"""New objects between two searches for garbage, 700 by default: imports make many that stay, and each search of them
costs; a tenth of the seconds that imports take."""

PACKAGE, PLOTS = "torchmetrics", "torchmetrics.utilities.plot"
COMPILER = "torch._dynamo"
UTILS, RULES = PARTS = f"{COMPILER}.utils", f"{COMPILER}.trace_rules"
"""Those of the compiler that wait with it."""
COUNTER = "torch.utils.flop_counter"


def _called_in(module: str, name: str) -> Callable[..., Any]:
    """Stands for a function or class of a module that waits; the first call of it executes the module."""

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(_executed(importlib.import_module(module)), name)(*arguments, **options)

    return call


class _OfCompiler(type):
    def __instancecheck__(cls, instance: object) -> bool:
        compiler = sys.modules[COMPILER]
        return not isinstance(compiler, _Waiting) and isinstance(instance, compiler.OptimizedModule)


class _Compiled(metaclass=_OfCompiler):
    """Stands for the class of compiled modules, of which there are none as long as the compiler waits."""


def _not_compiled(function: Callable[..., Any] | None = None, *arguments: Any, **options: Any) -> Callable[..., Any]:
    """Stands for the decorator of functions that the compiler is to leave alone; does nothing as long as it waits."""
    if function is None:
        return _executed(sys.modules[COMPILER]).disable(function, *arguments, **options)  # type: ignore[no-any-return]
    plain, decorated = function, None

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal decorated
        if decorated is None and not isinstance(compiler := sys.modules[COMPILER], _Waiting):
            decorated = compiler.disable(plain, *arguments, **options)
        return (decorated or plain)(*args, **kwargs)

    return call


LIGHT: Mapping[str, Mapping[str, Callable[[], Any]]] = {
    PACKAGE: {
        "Metric": lambda: importlib.import_module("torchmetrics.metric").Metric,
        "MetricCollection": lambda: importlib.import_module("torchmetrics.collections").MetricCollection,
        "__version__": lambda: version(PACKAGE),
        "_logger": lambda: logging.getLogger(PACKAGE),
    },
    PLOTS: {
        "_AX_TYPE": lambda: object,  # for annotations
        "_PLOT_OUT_TYPE": lambda: object,
        "plot_single_or_multi_val": lambda: _called_in(PLOTS, "plot_single_or_multi_val"),
    },
    COMPILER: {
        "OptimizedModule": lambda: _Compiled,
        "disable": lambda: _not_compiled,
        "graph_break": lambda: lambda: None,  # nothing is being compiled
        "utils": lambda: importlib.import_module(UTILS),
        "trace_rules": lambda: importlib.import_module(RULES),
    },
    UTILS: {
        "is_compile_supported": lambda: _called_in(UTILS, "is_compile_supported"),
        "get_optimize_ddp_mode": lambda: lambda: "ddp_optimizer",  # the default
    },
    RULES: {"clear_lru_cache": lambda: lambda: None},  # nothing is kept yet
    "cuda.bindings.driver": {},
    "cuda.bindings.runtime": {},
    COUNTER: {"FlopCounterMode": lambda: _called_in(COUNTER, "FlopCounterMode")},
}
"""Modules that wait, and names of theirs that can be had without executing them."""


def start_quickly() -> None:
    """For a process that is ours alone, before Lightning is imported; later it changes nothing of that."""
    gc.set_threshold(OBJECTS, *gc.get_threshold()[1:])
    atexit.unregister(_end_quickly)
    if _is_command(sys.modules["__main__"]):
        atexit.register(_end_quickly)
    if PACKAGE not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _is_command(main: ModuleType) -> bool:
    """Whether a program is `python -m immunize...` or a script of the package, and not one that calls its functions."""
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None) or ""
    return (Path(path).name if spec is None else spec.name).startswith("immunize")


def _end_quickly() -> None:
    """What else is registered runs, Python's output is written and the exit code stays.

    Files that a program leaves open in its own globals would not be written: it is for commands alone.
    """
    if "triton" not in sys.modules:  # whose bindings would list what is not cleared
        gc.freeze()
    with contextlib.suppress(AttributeError):  # only in glibc
        ctypes.pythonapi.on_exit(ctypes.pythonapi._exit, None)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of `LIGHT`, by asking the other finders."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module's own specification, with a loader that waits."""
        if name not in LIGHT and name.startswith(f"{COMPILER}."):
            _executed(sys.modules[COMPILER])
        if name not in LIGHT or (name in PARTS and not isinstance(sys.modules[COMPILER], _Waiting)):
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """Leaves a module empty until a name is asked for that `LIGHT` has not."""

    def __init__(self, real: importlib.abc.Loader) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = _Waiting
        if module.__name__ == PACKAGE:
            importlib.import_module("torchmetrics.utilities")  # first, as in its `__init__`: they import each other


class _Waiting(ModuleType):
    def __getattr__(self, name: str) -> Any:
        light = LIGHT[self.__name__].get(name)
        if light is not None and (self.__name__ not in PARTS or isinstance(sys.modules[COMPILER], _Waiting)):
            return light()
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_executed(self), name)


def _executed(module: ModuleType) -> ModuleType:
    if module.__name__ in PARTS:
        _executed(sys.modules[COMPILER])
        return importlib.import_module(module.__name__)
    spec = module.__spec__
    if isinstance(module, _Waiting) and spec is not None and isinstance(spec.loader, _Loader):
        ModuleType.__setattr__(module, "__class__", ModuleType)
        if module.__name__ == COMPILER:  # which imports its parts in an order of its own, as if nothing had waited
            for part in PARTS:
                sys.modules.pop(part, None)
                module.__dict__.pop(part.rpartition(".")[2], None)
        spec.loader.real.exec_module(module)
    return module
