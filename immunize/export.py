"""`python -m immunize.export run=<folder>`: the immunized network of a run as plain weights with timm's names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from immunize.cli import command, tell
from immunize.errors import CheckpointError, UserError
from immunize.files import write_text
from immunize.records import CHECKPOINT, EXPORT, EXPORTED, read_immunized
from immunize.settings import check_folder

if TYPE_CHECKING:
    from torch import nn

WEIGHTS, TIMM_CONFIG, CARD = EXPORTED

KEPT = ("first_conv", "classifier", "fixed_input_size", "pool_size")
"""What timm's pretrained configuration knows of an architecture, beside the input and the classes."""


def run(folder: Path, *, out: Path | None = None, overwrite: bool = False) -> Path:
    """Write the network of a run for use without this package: `model.safetensors`, timm's `config.json`, `README.md`.

    Args:
        folder: output folder of a finished run with a deep model.
        out: where to; None is the folder `export` in the run's.
        overwrite: replace an export that is there.

    Returns:
        The folder that was written.

    Raises:
        UserError: a linear run, a network that timm cannot build, or an export that is there.
        CheckpointError: a run that did not finish, or whose checkpoint is missing or does not fit.
    """
    record = read_immunized(folder)
    model = record["config"].get("model", {})
    if model.get("kind") != "deep":
        raise UserError(f"the run in {folder} trained a linear model, its θ lies in {CHECKPOINT}; there is no network")
    if record["status"] != "finished":
        raise CheckpointError(f"the run in {folder} is '{record['status']}', only a finished one is exported")
    if model.get("architecture") is None:
        raise UserError(
            f"the network of the run in {folder} comes from {model.get('_target_')}, not from timm; build it there and "
            f"load {folder / CHECKPOINT}, which has the names of its own state dict"
        )
    out = folder / EXPORT if out is None else out
    if (out / WEIGHTS).exists() and not overwrite:
        raise UserError(f"{out} already holds {WEIGHTS}; choose another folder with out=<folder> or set overwrite=true")
    from immunize.features.weights import build_network, load_weights, network_arguments, save_weights

    state = load_weights(folder / CHECKPOINT)
    if mapped := [name for name in state if f".{name}".endswith(".map.weight")]:
        raise UserError(
            f"the run in {folder} appended a linear layer ({mapped[0]}), which no network of timm has; build the "
            f"network with timm, append the layer with immunize.features.append_map, and load {folder / CHECKPOINT}"
        )
    check_folder(out, "out")
    built = {name: model.get(name) for name in ("architecture", "image_size", "kwargs")}
    network = build_network(**built, checkpoint=folder / CHECKPOINT)
    arguments = network_arguments(built["architecture"], built["image_size"], built["kwargs"] or {})
    config = _timm_config(network, model, arguments)

    write_text(out / TIMM_CONFIG, json.dumps(config, indent=2) + "\n")
    words = "".join(f", {key}={value!r}" for key, value in arguments.items())
    call = f'timm.create_model("{config["architecture"]}", num_classes={config["num_classes"]}{words}'
    write_text(out / CARD, _card(record, call))
    save_weights(out / WEIGHTS, state, {"config_hash": record["config_hash"]})  # last: with them the folder is finished
    return out


@command("export", values=True)
def main(folder: str, out: str | None, overwrite: bool) -> None:
    """Print the folder as the last line of stdout."""
    tell(f"{folder}: exporting")
    to = None if out is None else Path(out)
    print(run(Path(folder), out=to, overwrite=overwrite), flush=True)


def _timm_config(network: nn.Module, model: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """What timm needs to build and feed the network, in the form of its hub's `config.json`."""
    from immunize.features.deep import input_config

    known: Any = network.pretrained_cfg
    classes: Any = network.num_classes
    return {
        "architecture": known["architecture"],
        "num_classes": classes,
        "num_features": network.num_features,
        "model_args": arguments,
        "pretrained_cfg": {
            **{key: known[key] for key in KEPT if known.get(key) is not None},
            **input_config(network, model.get("image_size"), model.get("data") or {}),
            "num_classes": classes,
        },
    }


def _card(record: dict[str, Any], call: str) -> str:
    """Where the weights come from, how to load them, and what says how far the defence holds."""
    from immunize.report.naming import data_name

    pretrain, harmful = (data_name(record, role) for role in ("pretrain", "harmful"))
    return f"""# {record["model"]}, immunized by `{record["method"]}`

    model = {call}, checkpoint_path="{WEIGHTS}")

Pre-trained on {pretrain}, immunized against {harmful}, seed {record["seed"]}; config hash
{record["config_hash"]}. What was measured, and who learns the harmful task all the same, is on the run's card:
`python -m immunize.report card run=<the run> out=<this folder>`. No condition number stops an attacker who probes
with Adam or L-BFGS, whitens the features or fine-tunes the network.
"""


if __name__ == "__main__":
    main()
