"""`make mutation`: would the tests of the mathematics notice if it were changed?

    python -m experiments.mutation [sample=400] [seed=0] [seconds=5] [examples=20] [again=survived]
        [out=experiments/mutation]

Every small change (mutant) of `immunize/spectrum` and `immunize/objective`, or a random sample of them, is tried on the
tests of its room; defaults are in pyproject.toml under `tool.mutation`. `sample=all` tries all of them. The same
command goes on where it stopped; `again=` tries those once more that have one of these statuses, or `all`. Real data
take no part.

Results: mutants.csv, one row a mutant; files.csv and table.md, one row a file; survivors.md; README.md, how and when.
"""

from __future__ import annotations

import os
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.reporting import key_values, made_now, readme
from immunize.cli import entry_point, explain_errors
from immunize.errors import UserError

if TYPE_CHECKING:
    from experiments.mutation.killing import Outcome
    from experiments.mutation.mutants import Mutant

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
COLUMNS = ("file", "line", "function", "operator", "before", "after", "status", "test", "key")
KEYS = {"sample", "seed", "seconds", "examples", "again", "out"}
TELL_EVERY = 25

Rows = dict[str, dict[str, Any]]
"""What is known of each mutant, by key."""


@dataclass(frozen=True)
class Settings:
    """What a command asks for.

    Attributes:
        root: of the repository.
        rooms: folders of the files that are mutated.
        size: of the sample; None for all.
        seed: of the sample.
        seconds: CPU time of tests for a mutant.
        examples: most of a property test.
        again: statuses to try once more.
        out: folder of the results.
    """

    root: Path
    rooms: tuple[str, ...]
    size: int | None
    seed: int
    seconds: float
    examples: int
    again: tuple[str, ...]
    out: Path

    @property
    def files(self) -> list[Path]:
        """The files that are mutated."""
        return [path for room in self.rooms for path in sorted((self.root / room).rglob("*.py"))]

    def tests_of(self, path: str) -> str:
        """The folder of the tests of a file's room."""
        room = next(room for room in self.rooms if path.startswith(f"{room}/"))
        return f"tests/{Path(room).name}"


@entry_point
def main() -> None:
    """Try what has not been tried, then write the tables."""
    explain_errors(run)(sys.argv[1:])


def run(arguments: Sequence[str], root: Path = ROOT) -> Path:
    """See the module's note.

    Args:
        arguments: of the command line.
        root: of the repository, with its pyproject.toml.

    Raises:
        UserError: a bad argument, a tool that is not installed, or tests that fail without any mutant.
    """
    settings = settings_of(arguments, root)
    try:
        from experiments.mutation.mutants import mutants_of, sample
    except ImportError as error:
        raise UserError(f"{error}: pip install -e '.[dev]'") from None

    everything = [mutant for path in settings.files for mutant in mutants_of(path, root)]
    runnable = [mutant for mutant in everything if not mutant.text]
    chosen = sample(runnable, settings.size or len(runnable), settings.seed)
    settings.out.mkdir(parents=True, exist_ok=True)
    rows = _kept(settings, {mutant.key for mutant in chosen})
    waiting = [mutant for mutant in chosen if mutant.key not in rows]
    if waiting:
        _try(settings, waiting, rows)
        _write(settings, everything, rows, arguments)
    return settings.out


def settings_of(arguments: Sequence[str], root: Path) -> Settings:
    """The defaults of pyproject.toml with what the command line says.

    Raises:
        UserError: an unknown key, or a number that is none.
    """
    given = key_values(arguments, KEYS)
    table = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutation"] | given
    try:
        return Settings(
            root=root,
            rooms=tuple(table["rooms"]),
            size=None if table["sample"] == "all" else int(table["sample"]),
            seed=int(table["seed"]),
            seconds=float(table["seconds"]),
            examples=int(table["examples"]),
            again=tuple(filter(None, table.get("again", "").split(","))),
            out=Path(table.get("out", HERE)),
        )
    except ValueError as error:
        raise UserError(f"sample=, seed=, seconds= and examples= are numbers, sample= may be all: {error}") from None


def _kept(settings: Settings, keys: set[str]) -> Rows:
    """The rows of mutants that are still there and need not be tried again."""
    path = settings.out / "mutants.csv"
    if not path.is_file() or "all" in settings.again:
        return {}
    rows = pd.read_csv(path, dtype=str, na_filter=False).to_dict("records")
    return {row["key"]: row for row in rows if row["key"] in keys and row["status"] not in settings.again}


def _try(settings: Settings, waiting: Sequence[Mutant], rows: Rows) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # forks of a process with threads hang
    os.environ.pop("IMMUNIZE_DATA", None)
    import pytest

    from experiments.mutation.killing import Trials

    statuses: Counter[str] = Counter()

    def tell(mutant: Mutant, outcome: Outcome) -> None:
        rows[mutant.key] = {
            **{name: getattr(mutant, name) for name in ("line", "function", "operator", "before", "after", "key")},
            "file": mutant.path,
            "status": outcome.status,
            "test": outcome.test,
        }
        statuses[outcome.status] += 1
        if statuses.total() % TELL_EVERY == 0 or statuses.total() == len(waiting):
            counts = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
            print(f"{statuses.total()} of {len(waiting)}: {counts}", flush=True)
            _save(settings, rows)

    tests = sorted({settings.tests_of(f"{room}/") for room in settings.rooms})
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(settings, waiting, tell)
        options = ["--rootdir", str(settings.root), "-qq", "--capture=no", "--basetemp", f"{folder}/pytest"]
        options += [word for plugin in ("cacheprovider", "xdist", "cov") for word in ("-p", f"no:{plugin}")]
        code = pytest.main([*options, *(str(settings.root / test) for test in tests)], plugins=[trials])
    if statuses.total() < len(waiting):
        raise UserError(f"the tests did not run (pytest ended with {int(code)})")


def _save(settings: Settings, rows: Rows) -> pd.DataFrame:
    ordered = sorted(rows.values(), key=lambda row: (row["file"], int(row["line"]), row["key"]))
    found = pd.DataFrame(ordered, columns=COLUMNS)
    found.to_csv(settings.out / "mutants.csv", index=False, lineterminator="\n")
    return found


def _write(settings: Settings, everything: Sequence[Mutant], rows: Rows, arguments: Sequence[str]) -> None:
    from experiments.mutation import page

    ordered = _save(settings, rows)
    counts = page.totals(everything, ordered)
    counts.to_csv(settings.out / "files.csv", index=False, float_format="%.6g", lineterminator="\n")
    table, left = page.table(counts), page.survivors(ordered)
    (settings.out / "table.md").write_text(table, encoding="utf-8")
    (settings.out / "survivors.md").write_text(left, encoding="utf-8")
    facts = [
        (
            "mutants",
            f"{sum(not mutant.text for mutant in everything):,}, and {sum(m.text for m in everything)} of text",
        ),
        ("sample", f"{len(rows):,}, seed {settings.seed}"),
        ("tests of a mutant", f"{settings.seconds:g} s of CPU time, {settings.examples} examples of a property"),
    ]
    command = " ".join(["python -m experiments.mutation", *arguments])
    body = [table.rstrip(), "", "## Survivors", "", left]
    (settings.out / "README.md").write_text(
        readme("Mutation testing", [*made_now(command), *facts], body), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
