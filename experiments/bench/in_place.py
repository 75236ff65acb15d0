"""Networks that are immunized in place, as a user runs them: measuring one takes no longer than training it.

    resnet_small     embedded digits, `censor`                                    at most once the training
    vit_small        embedded digits, `ours`                                      likewise
    resnet18_64px    Caltech-101 against Tiny ImageNet, `ours`, all images        likewise

Every run is its default in a fresh process. Training is what the optimizer's steps take, without the pass of all images
through the frozen part that comes before; measuring is all that comes after them. Writes in_place.csv; a run whose
images are not in IMMUNIZE_DATA is left out, and said.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.bench.machine import show, write_csv
from experiments.bench.mnist import measure as measure_run

CASES: dict[str, tuple[str, tuple[str, ...]]] = {  # network: method, other overrides
    "resnet_small": ("censor", ("harmful=digits",)),
    "vit_small": ("ours", ("harmful=digits",)),
    "resnet18_64px": ("ours", ("harmful=caltech101", "pretrain=tiny_imagenet")),
}
IMAGES = {"resnet18_64px": ("caltech101", "tiny_imagenet_32", "weights")}
"""Folders of IMMUNIZE_DATA that a run needs."""
LIMIT = 1.0


def measure(network: str, method: str, overrides: Sequence[str]) -> dict[str, Any]:
    """One run in a process of its own.

    Args:
        network: the choice of `model`.
        method: the choice of `method`.
        overrides: others.

    Returns:
        a row of in_place.csv.

    Raises:
        UserError: the run failed.
    """
    found = measure_run([f"model={network}", f"method={method}", *overrides, "seed=0"])
    kept = ("steps", "training_s", "evaluation_s", "work_s", "peak_gb", "threads")
    ratio = found["evaluation_s"] / found["training_s"]
    return {"network": network, "method": method, **{name: found[name] for name in kept}, "ratio": round(ratio, 3)}


def run(out: Path) -> None:
    """Measure all that there are images for, print and write.

    Args:
        out: the folder of results.

    Raises:
        UserError: a run failed.
    """
    rows, data = [], Path(os.environ.get("IMMUNIZE_DATA", "."))
    for network, (method, overrides) in CASES.items():
        if all((data / name).is_dir() for name in IMAGES.get(network, ())):
            rows.append(measure(network, method, overrides))
        else:
            print(f"left out, no images in IMMUNIZE_DATA: {network}", file=sys.stderr)
    write_csv(out / "in_place.csv", rows)
    show("measuring after training in place", rows)
