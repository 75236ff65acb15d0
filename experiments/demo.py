"""`make demo`: the paper's method and erasure, side by side, against all attackers of the grid, on embedded data.

    python -m experiments.demo [out=outputs/demo]

scikit-learn's digits, D_P 0 to 4, D_H 5 to 9, a linear model, one seed; the whole grid (`attack=full`), a small budget.
Leaves a run a method with its attacks, and a table and a figure of both; the last line of stdout is the figure.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from hydra import compose, initialize_config_dir

from experiments.reporting import key_values
from immunize import attack, train
from immunize.cli import entry_point, explain_errors, tell
from immunize.config import config_dir, register
from immunize.files import write_text
from immunize.processes import KEPT_MEMORY, closing_pool
from immunize.report.attacks.one_run import verdict_sentence
from immunize.report.attacks.page import best_figure
from immunize.report.attacks.records import KINDS, THETA_0, Attacks, collected
from immunize.report.loading import write_results
from immunize.report.table import Table, short, to_print, to_read
from immunize.report.writing import save_figure
from immunize.threads import cores

METHODS = ("ours", "erase")
BUDGET = ("attack=full", "attack.budget.steps=300", "attack.budget.flops=1e10", "seeds=[0]")
"""Ours: a minute on two cores."""


@entry_point
def main() -> None:
    """Immunize twice, attack both, and show what came of it."""
    explain_errors(run)(sys.argv[1:])


def run(arguments: Sequence[str], *, shorter: Sequence[str] = ()) -> Path:
    """See the module's note.

    Args:
        arguments: of the command line.
        shorter: further overrides of the trainings.

    Returns:
        path of the figure.
    """
    out = Path(key_values(arguments, {"out"}).get("out", "outputs/demo"))
    with closing_pool(min(cores(), len(METHODS)), 1, environment=KEPT_MEMORY) as pool:
        futures = {method: pool.submit(both_of, method, out, BUDGET, shorter) for method in METHODS}
        made = {method: future.result() for method, future in futures.items()}
    attacks = Attacks.of([collected(attacked) for _, attacked in made.values()])
    write_results(attacks.records, out)
    write_text(out / "table.md", table_of(attacks).markdown())
    save_figure(best_figure(attacks), out / "best")
    screen, shown = to_read(), rows_of(attacks)
    screen.print(to_print(shown, shown.columns))
    for method, (trained, attacked) in made.items():
        rir = f"RIR {short(trained['metrics']['held_out']['spectrum']['rir'])} on held-out rows; "
        measured = rir if trained["aims_at_kappa"] else ""
        told = f"{method}: {measured}harmful task {verdict_sentence(attacked, 'harmful')}"
        screen.print(told, markup=False)
    print(out / "best.png")
    return out / "best.png"


def both_of(
    method: str, out: Path, budget: Sequence[str], shorter: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Record of a method's run, and of the attacks on it; what attacks θ_0 is kept for the other."""
    register()
    folder = out / method
    with initialize_config_dir(config_dir(), version_base="1.3"):
        training = ["harmful=digits5to9", f"method={method}", "logger=none", "overwrite=true", *shorter]
        cfg = compose("train", training)
        grid = compose("attack", [*budget, f"run={folder}", f"cells={out / 'cells'}", "overwrite=true"])
    trained = train.run(cfg, folder, quiet=True)
    tell(f"{method}: trained; attacking")
    return trained, attack.run(grid)


def table_of(attacks: Attacks) -> Table:
    """Best score by tier and kind of task, from θ_0 and through every method.

    Args:
        attacks: of one kind of data.
    """
    (group,) = attacks.groups
    chance = mean(group.chances("harmful"))
    rows = [
        [f"`{method}`", *(cell for kind in group.kinds for cell in group.scores(method, kind))]
        for method in [THETA_0, *METHODS]
    ]
    title = f"Best accuracy by tier of attackers; of the best constant answer {chance:.2f}"
    return Table(title, ["method", *group.wanted_columns], rows)


def rows_of(attacks: Attacks) -> Table:
    """The same numbers, a row a task and method, as narrow as a terminal."""
    (group,) = attacks.groups
    rows = [
        [f"{KINDS[kind]} {'↓' if kind == 'harmful' else '↑'}", method, *group.scores(method, kind)]
        for kind in group.kinds
        for method in [THETA_0, *METHODS]
    ]
    return Table(table_of(attacks).title, ["task", "method", *group.tiers], rows)


if __name__ == "__main__":
    main()
