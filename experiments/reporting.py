"""What the scripts of this folder that end in a README and a table share."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from immunize.errors import UserError
from immunize.report.loading import load_records, write_results
from immunize.report.naming import pair_title
from immunize.report.provenance import made_with, readme, versions_of
from immunize.report.table import Table

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["digit_pairs", "key_values", "machine_of", "made_now", "report_runs"]

SHOWN = ("python", "immunize", "torch", "numpy", "scipy")


def key_values(arguments: Sequence[str], known: set[str], *, needed: Collection[str] = ()) -> dict[str, str]:
    """The `key=value` arguments of a command line.

    Args:
        arguments: of the command line.
        known: keys.
        needed: those that have to be given.

    Raises:
        UserError: something else, an unknown key, or one that is missing.
    """
    given = {}
    for argument in arguments:
        key, sign, value = argument.partition("=")
        if not sign or key not in known:
            raise UserError(f"{argument} is not understood; there are {', '.join(f'{one}=' for one in sorted(known))}")
        given[key] = value
    if missing := sorted(set(needed) - given.keys()):
        raise UserError(f"{', '.join(f'{key}=' for key in missing)}: needed")
    return given


Record = dict[str, Any]


def report_runs(
    arguments: Sequence[str],
    script: str,
    title: str,
    target: str,
    *,
    read: Callable[[Sequence[Record]], pd.DataFrame],
    table_of: Callable[[pd.DataFrame], Table],
    draw: Callable[[pd.DataFrame, str, Path], None],
    figure: tuple[str, str],
) -> Path:
    """Write table.md, a figure, README.md and the records of some runs into `out=`, and print the folder.

    Args:
        arguments: `experiment=`, and `runs=` and `out=` where they are not the usual ones.
        script: in this folder.
        title: of the page, before the data and the model.
        target: of `make`; "{scale}" is what the preset's name ends in.
        read: from the records what is shown of them.
        table_of: it, as a table.
        draw: it, with a title, as a figure to a path without suffix.
        figure: the name of its file, and what it shows.

    Raises:
        UserError: a bad argument, or no finished run.
    """
    given = key_values(arguments, {"experiment", "runs", "out"}, needed=("experiment",))
    name = given["experiment"]
    try:
        records = load_records(Path(given.get("runs", f"outputs/{name}")))
    except (FileNotFoundError, ValueError) as error:
        raise UserError(str(error)) from None
    out, first = Path(given.get("out", f"experiments/{name}")), records[0]
    found, (file_name, shows) = read(records), figure
    out.mkdir(parents=True, exist_ok=True)
    draw(found, f"{first['model']}, {pair_title(first)}", out / file_name)
    text = table_of(found).markdown(heading=False)
    write_results(records, out)
    page = readme(
        f"{title}: {pair_title(first)}, {first['model']}",
        [("runs", f"{len(records)}"), *made_with(records), versions_of(records)],
        [f"![{shows}]({file_name}.png)", "", text],
        target=f" `{target.format(scale=name.partition('_')[2])}`, that is, with θ_0 there,",
        commands=[
            f"python -m immunize.train experiment={name}",
            f"python -m experiments.{script} experiment={name} runs=outputs/{name} out=experiments/{name}",
        ],
    )
    for file, content in {"table.md": text, "README.md": page}.items():
        (out / file).write_text(content, encoding="utf-8")
    print(out)
    return out


def digit_pairs(text: str) -> list[tuple[int, int]]:
    """ "01,38" to [(0, 1), (3, 8)]; all 90 ordered pairs for an empty text.

    Raises:
        UserError: not pairs of two different digits.
    """
    if not text:
        return [(p, h) for p in range(10) for h in range(10) if p != h]
    words = text.split(",")
    for word in words:
        if len(word) != 2 or not word.isdecimal() or word[0] == word[1]:
            raise UserError(f"pairs={text}: write two different digits a pair, as in pairs=01,38")
    return [(int(word[0]), int(word[1])) for word in words]


def machine_of(record: Record) -> str:
    """Processor, cores and memory that it was made with."""
    return "{processor}, {cores} cores, {memory_gib} GiB".format_map(record["hardware"])


def made_now(command: str) -> list[tuple[str, str]]:
    """Facts of a page that this process writes: command, commit, date, machine, versions."""
    from immunize.records import provenance

    own = provenance()
    return [
        ("command", f"`{command}`"),
        ("commit", str(own["git_commit"])),
        ("date", time.strftime("%Y-%m-%d", time.gmtime())),
        ("machine", machine_of(own)),
        ("versions", ", ".join(f"{name} {own['versions'][name]}" for name in SHOWN)),
    ]
