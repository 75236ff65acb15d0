"""`make transfer`: immunized against one data set, attacked with another. How far does it carry, and what tells before?

    python -m experiments.transfer [runs=outputs/table2] [pretrain=0,1] [seeds=0,1,2] [families=mnist,images]
        [features=outputs/deep_features] [cache=outputs/transfer] [out=experiments/transfer] [data_root=folder]

The defender knows a proxy of what the attacker will bring, not that itself. A cell of a matrix: θ was made against the
proxy (row) and D_P, the attacker brings the target (column).

mnist    D_P one digit, θ of the finished runs of `closed_form` and `ours` in `runs`; proxies and targets are all other
         digits
images   a ResNet18's features, D_P Tiny ImageNet, θ the closed form and `sparing` of experiments.appended_layer;
         proxies and targets: two halves of the classes of Stanford Cars, all of it, the vehicles of Caltech-101, and
         what Caltech-101 has beside them

RIR and the cost of a probe by gradient descent, both on held-out images: on digits the steps to a norm ratio of 0.1
(Eq. 16), on the images of many classes accuracy. What is correlated with the effects is known before the attack, from
training images. Finished maps are kept in `cache`; the same command goes on where it stopped.

The measures are in `digits.py` and `images.py`, what is made of them in `report.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.deep_features import data_root
from experiments.reporting import choices, key_values
from experiments.transfer.measures import Cell
from experiments.transfer.report import NAME, report
from immunize.cli import entry_point, explain_errors
from immunize.errors import UserError

FAMILIES = ("mnist", "images")


@entry_point
def main() -> None:
    """Measure what is missing, then write results.csv, correlations.csv, table.md, README.md and the figure."""
    explain_errors(run)(sys.argv[1:])


def run(arguments: Sequence[str]) -> Path:
    """See the module's note.

    Raises:
        UserError: a bad argument, no run, or data that are missing.
    """
    keys = {"runs", "pretrain", "seeds", "families", "features", "cache", "out", "data_root"}
    given = key_values(arguments, keys)
    families = choices(given, "families", FAMILIES)
    digits, seeds = _numbers("pretrain", given.get("pretrain", "0,1")), _numbers("seeds", given.get("seeds", "0,1,2"))
    if any(digit > 9 for digit in digits):
        raise UserError(f"pretrain={given['pretrain']}: digits are 0 to 9")
    root, cache = data_root(given.get("data_root")), Path(given.get("cache", f"outputs/{NAME}"))
    cells: list[Cell] = []
    if "mnist" in families:
        from experiments.transfer.digits import digit_cells

        cells += digit_cells(Path(given.get("runs", "outputs/table2")), digits, seeds, root, cache)
    if "images" in families:
        from experiments.transfer.images import image_cells

        cells += image_cells(root, Path(given.get("features", "outputs/deep_features")), cache)
    out = Path(given.get("out", f"experiments/{NAME}"))
    report(cells, out)
    print((out / "README.md").read_text(encoding="utf-8"), end="")
    return out


def _numbers(name: str, text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isdecimal() for word in words):
        raise UserError(f"{name}={text}: write whole numbers with commas between them, as in {name}=0,1")
    return list(dict.fromkeys(map(int, words)))


if __name__ == "__main__":
    main()
