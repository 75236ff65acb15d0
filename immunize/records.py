"""One record a run: every number with the estimator and the part of the data it belongs to, and what produced it.

A record is a JSON object in `record.json`, written whole or not at all. Its `status` says whether to use it:
"finished", "diverged" or "interrupted". It is that of `fit`: where the second extractor alone diverged, the one that
data without held-out rows are measured with, the run is finished without held-out numbers (:func:`diverged_cross_fit`).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import hashlib
import itertools
import json
import math
import os
import platform
import resource
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from immunize import __version__
from immunize.errors import CheckpointError, some
from immunize.files import write_text
from immunize.memoize import give_back_memory

RECORD, CHECKPOINT, FIGURE = "record.json", "checkpoint.safetensors", "norm_ratio.png"
ATTACK_RECORD, ATTACK_CELLS = "attack_record.json", "attack_cells"
"""What `immunize.attack` leaves in a run's folder: its record, and before that the attacks that are done."""
CARD_JSON, CARD_MD, REPORT, EXPORT = "card.json", "CARD.md", "report.html", "export"
EXPORTED = ("model.safetensors", "config.json", "README.md")
MADE_OF_A_RUN = (CARD_JSON, CARD_MD, REPORT, *(f"{EXPORT}/{name}" for name in EXPORTED))
"""Files that are made of a run's record and checkpoint later, in its folder unless `out=` says otherwise."""
METRICS, RESULTS = "metrics.csv", "results.csv.gz"
"""What `logger=csv` leaves in a run's folder, and what a report makes of many runs."""
SWEEP = "sweep.json"
"""In the folder of a sweep that can be continued: which of the runs there are its own, by their config hashes. Runs
with settings of before stay in the folder until somebody removes them."""

SCHEMA_VERSION = 1

Keys = tuple[str, ...]
"""Where something stands in nested dictionaries, from the outermost."""

_runs = itertools.count()
"""How many runs this process has begun."""

_PACKAGES = (
    *("torch", "torchvision", "lightning", "timm", "hydra-core", "omegaconf", "numpy", "scipy", "pandas"),
    *("scikit-learn", "matplotlib", "safetensors", "wandb"),
)


def begun() -> dict[str, Any]:
    """What every record begins with: a version, a status, and when."""
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"schema_version": SCHEMA_VERSION, "status": "started", "started": started}


def provenance() -> dict[str, Any]:
    """Git commit, package versions and hardware, as far as they can be told."""
    return {
        "git_commit": _git_commit(),
        "versions": {
            "python": platform.python_version(),
            "immunize": __version__,
            **{name: _version(name) for name in _PACKAGES},
        },
        "hardware": _hardware(),
        "command": _command(),
    }


def reset_peak_memory() -> None:
    """Let :func:`peak_memory_mib` count from here, where the system can (Linux); in a sweep one process has many runs.

    What runs of before have left goes back to the system first: reference cycles hold rows, and glibc what was freed.
    """
    if next(_runs):  # searching what imports have left would cost the first run a third of a second
        gc.collect()
    give_back_memory()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory_mib() -> float:
    """Largest resident set since :func:`reset_peak_memory`, MiB; elsewhere than on Linux since the process began."""
    with contextlib.suppress(OSError, StopIteration, ValueError, IndexError):
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return round(int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024, 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1024**2 if sys.platform == "darwin" else 1024), 1)


def write_record(folder: Path, record: dict[str, Any], name: str = RECORD) -> Path:
    """Write a record whole or not at all, and return its path. NaN and infinities become null."""
    return write_text(folder / name, json.dumps(plain(record), indent=1, allow_nan=False) + "\n")


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a run, or of a training of θ_0.

    Raises:
        CheckpointError: there is none, it is not one of ours, or it is of another version.
    """
    path = folder / RECORD
    try:
        record = read_file(path)
        if "config" not in record:
            raise ValueError(f"{path} is not a record of immunize.train: it has no 'config'")
        if not all(isinstance(settings, dict) for settings in (record["config"], record.get("without_effect", {}))):
            raise ValueError(f"{path} holds what no run writes: settings that are no groups of settings")
        check_versions([record], path)
    except FileNotFoundError:
        raise CheckpointError(f"{folder} holds no {RECORD}") from None
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    return record


def no_record(folder: Path) -> str:
    """Why a folder is not that of a run, and which one may have been meant."""
    if not folder.is_dir():
        there = "it is a file, name the folder that it lies in" if folder.exists() else "there is no such folder"
        return f"{folder} holds no {RECORD}: {there}"
    below = (folder.glob("*/" * depth + RECORD) for depth in (1, 2, 3))  # a multirun's folder has its date and time
    first = next(itertools.chain.from_iterable(below), None)
    if first is not None or (folder / RESULTS).is_file():
        one = "" if first is None else f"name one of them, such as {first.parent}, or look at all of them with "
        return f"{folder} is not a run's but holds runs: {one}python -m immunize.report html sweep={folder}"
    if (folder / METRICS).is_file():
        return f"the run in {folder} has no {RECORD} yet: it is written when the run ends"
    return f"{folder} holds no {RECORD}: is it the output folder of a run?"


def read_immunized(folder: Path) -> dict[str, Any]:
    """The record of a run of `immunize.train`.

    Raises:
        CheckpointError: as :func:`read_record`, or it is that of a training of θ_0.
    """
    if not (folder / RECORD).exists():
        raise CheckpointError(no_record(folder))
    record = read_record(folder)
    if "method" not in record:
        raise CheckpointError(f"{folder} holds no run of immunize.train; the weights that lie there are plain already")
    if lacking := [name for name in ("config_hash", "data_hash", "hardware") if name not in record]:
        raise CheckpointError(f"the record in {folder} lacks {some(lacking)}: it is of another version, or no run's")
    return record


def read_file(path: Path, what: str = "a record") -> dict[str, Any]:
    """The record in a file.

    Args:
        path: of the file.
        what: it should be, for messages.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it was cut off or damaged, or is no record.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"{path} is not there") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} cannot be read as {what}: {error}. If it was cut off or damaged, give the command that made it "
            "again, or move it away"
        ) from None
    if not isinstance(record, dict) or not isinstance(record.get("status"), str):
        raise ValueError(f"{path} is not {what}: it has no status")
    return record


def check_versions(records: Sequence[Mapping[str, Any]], where: Path) -> None:
    """Refuse records that mean something else by the same words.

    Raises:
        ValueError: records of more than one schema version, or of one that is not this package's.
    """
    counts = Counter(str(record.get("schema_version")) for record in records)
    if len(counts) > 1:
        told = " and ".join(f"{version} ({count:,})" for version, count in sorted(counts.items()))
        raise ValueError(
            f"{where} mixes records of schema versions {told}: do the runs of the older one again, or move them away"
        )
    if (found := next(iter(counts), str(SCHEMA_VERSION))) != str(SCHEMA_VERSION):
        raise ValueError(
            f"{where} has schema version {found}, this version of immunize reads {SCHEMA_VERSION}: do the run again "
            "with overwrite=true, or use the version that made it"
        )


def diverged_cross_fit(record: dict[str, Any]) -> str | None:
    """Why a finished run has no `held_out` numbers; None where its cross-fit did not diverge, or it has none."""
    found = (record.get("training") or {}).get("cross_fit", {}).get("diverged")
    if found is None:
        return None
    return f"the cross-fit diverged in step {found['step']}: {found['term']} became {found['value']}"


def whole_config(record: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a record with what had no effect in it, which is what its hash is of."""
    return merged(record["config"], record.get("without_effect", {}))


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`base` with `over` put over it, nested dictionaries key by key; shares nothing with either."""
    result = copy.deepcopy(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else copy.deepcopy(value)
    return result


def parted(settings: Mapping[str, Any], names: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Nested dictionaries in two, which :func:`merged` puts together again: the rest, and what is named.

    Args:
        settings: with dictionaries in it.
        names: dotted, of settings or of groups of them.
    """
    found: dict[bool, list[tuple[Keys, Any]]] = {True: [], False: []}
    for keys, value in leaves(settings):
        found[any(name in names for name in itertools.accumulate(keys, "{}.{}".format))].append((keys, value))
    return nested(found[False]), nested(found[True])


def leaves(tree: Mapping[str, Any], above: Keys = ()) -> list[tuple[Keys, Any]]:
    """Keys and value of everything in nested dictionaries that is no further one; an empty one is a leaf."""
    found = []
    for key, value in tree.items():
        keys = (*above, str(key))
        found += leaves(value, keys) if isinstance(value, dict) and value else [(keys, value)]
    return found


def nested(leaves: Iterable[tuple[Sequence[str], Any]]) -> dict[str, Any]:
    """The nested dictionaries that have these :func:`leaves`."""
    tree: dict[str, Any] = {}
    for (*outer, last), value in leaves:
        place = tree
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = value
    return tree


def without(value: Any, key: str) -> Any:
    """The same with a key left out wherever it stands."""
    if isinstance(value, dict):
        return {name: without(item, key) for name, item in value.items() if name != key}
    return [without(item, key) for item in value] if isinstance(value, list) else value


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plain(value: Any) -> Any:
    """The same with everything that JSON cannot hold replaced: NaN and infinities by null, tuples and arrays by lists.

    Whatever holds numbers in a way of its own, such as what somebody's method says of its map, is asked for plain ones.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _command() -> str:
    """The command that would repeat this run alone: in a multirun, the overrides of this job.

    An output folder that was named stays in it, unless it is one of this machine.
    """
    words = [Path(sys.argv[0]).name] if (module := _module()) is None else ["python", "-m", module]
    with contextlib.suppress(ImportError, ValueError):
        from hydra.core.hydra_config import HydraConfig

        given = HydraConfig.get().overrides
        places = (line.partition("=") for line in given.hydra)
        folder = ["=".join((key, to)) for key, _, to in places if key == "hydra.run.dir" and not Path(to).is_absolute()]
        return shlex.join([*words, *_config_dirs(sys.argv), *given.task, *folder])
    return shlex.join([*words, *sys.argv[1:]])


def _config_dirs(arguments: Sequence[str]) -> list[str]:
    """Hydra's `--config-dir`, without which settings of one's own are not found."""
    found: list[str] = []
    for word, following in itertools.pairwise([*arguments, ""]):
        if word in ("--config-dir", "-cd"):
            found += [word, following]
        elif word.startswith(("--config-dir=", "-cd=")):
            found.append(word)
    return found


def _module() -> str | None:
    """What `python -m` was given; the workers of a pool know it from the name of the file."""
    spec, program = getattr(sys.modules["__main__"], "__spec__", None), Path(sys.argv[0])
    name = "" if spec is None else str(spec.name)
    if program.suffix == ".py" and (program.parent.name == "immunize" or name.startswith("loky.")):
        parts = program.with_suffix("").parts
        first = max((at for at, part in enumerate(parts[:-1]) if part in ("immunize", "experiments")), default=0)
        name = ".".join(parts[first:])
    return name.removesuffix(".__main__") if name.startswith(("immunize.", "experiments.")) else None


_RESULTS = [f":(top,exclude,glob)experiments/**/*.{kind}" for kind in ("md", "csv", "gz", "json", "tex", "png", "pdf")]
"""What experiments write while they run: it changes no code, and is not what "-dirty" is to warn of."""


def _git_commit() -> str | None:
    here = str(Path(__file__).resolve().parent)

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", here, *arguments], capture_output=True, text=True, timeout=10, check=False)

    try:
        # An installed copy may lie inside somebody else's repository, whose commit would be a lie.
        if git("ls-files", "--error-unmatch", __file__).returncode != 0:
            return None
        head = git("rev-parse", "--verify", "HEAD")
        changed = git("diff", "--quiet", "HEAD", "--", ":/", *_RESULTS).returncode != 0
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + "-dirty" * changed if head.returncode == 0 else None


@functools.cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _hardware() -> dict[str, Any]:
    import torch

    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3, 1),
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "system": f"{platform.system()} {platform.machine()}",
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


RELATIVE_TOLERANCE = 1e-6
"""Numbers may differ by this much: another BLAS or thread count rounds differently, and κ amplifies rounding."""


def differences(old: Any, new: Any, name: str) -> list[str]:
    """One line for each number that is not the same again, both as :func:`plain` gives them.

    Args:
        old: as in the record.
        new: as computed now.
        name: of what is compared.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        lines = [f"{name}.{key}: only on one side" for key in sorted(old.keys() ^ new.keys())]
        for key in old.keys() & new.keys():
            lines += differences(old[key], new[key], f"{name}.{key}")
        return lines
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for i, (one, other) in pairs for line in differences(one, other, f"{name}[{i}]")]
    if isinstance(old, float) and isinstance(new, float):
        same = math.isclose(old, new, rel_tol=RELATIVE_TOLERANCE)
    else:
        same = old == new
    return [] if same else [f"{name}: {old} in the record, {new} now"]
