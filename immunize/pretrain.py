"""`python -m immunize.pretrain`: train a network on D_P, a θ_0 of one's own, which `model.checkpoint=` takes.

`main` only parses; :func:`run` does the work and returns the record.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from omegaconf import DictConfig, OmegaConf

from immunize.building import build
from immunize.cli import entry_point, explain_errors, sigint_restored, teller
from immunize.config import PretrainConfig, config_dir, config_hash, register, resolved
from immunize.errors import DivergedError, UserError
from immunize.processes import process_count, started_outside
from immunize.records import CHECKPOINT, RECORD, SCHEMA_VERSION, peak_memory_mib, provenance, write_record
from immunize.settings import LARGEST_SEED, Rule, check_folder, check_rules, check_schema, refuse_finished
from immunize.threads import cpu_threads

if TYPE_CHECKING:
    import torch
    from torch import nn

    from immunize.data.images import ImageSource, ImageSplits
    from immunize.features import DeepExtractor

__all__ = ["main", "run"]

ALL_OF_IT = {"trainable": ["*"]}
"""What of θ_0 may change is a setting of immunization; here it is made."""

FROM_SCRATCH = {**ALL_OF_IT, "pretrained": False, "checkpoint": None, "fresh_head": False}
"""The same where no new head is put on a network that is there: the weights are random."""

RULES: tuple[Rule, ...] = (
    ("seed", lambda value: 0 <= value <= LARGEST_SEED, f"between 0 and {LARGEST_SEED}"),
    ("epochs", lambda value: value >= 1, "at least 1"),
    ("batch_size", lambda value: value >= 1, "at least 1"),
    ("learning_rate", lambda value: 0 < value < math.inf, "positive and finite"),
    ("momentum", lambda value: 0 <= value < 1, "in [0, 1)"),
    ("weight_decay", lambda value: 0 <= value < math.inf, "a finite number ≥ 0"),
    ("label_smoothing", lambda value: 0 <= value < 1, "in [0, 1)"),
    ("workers", lambda value: value >= 0, "at least 0"),
    ("threads", lambda value: value is None or value >= 1, "at least 1, or null"),
)


def run(cfg: DictConfig, folder: Path, *, quiet: bool = False) -> dict[str, Any]:
    """Train from random weights, or from the model's own under a new head, and write record and checkpoint.

    The latter with `model.fresh_head=true`. The files are `record.json` and `checkpoint.safetensors` in `folder`.

    Args:
        cfg: the composed configuration (`conf/pretrain_theta.yaml`).
        folder: the output folder.
        quiet: show no progress.

    Returns:
        The record, as written: with `accuracy`, top-1 on held-out images, percent, if the training finished.

    Raises:
        UserError: anything in the configuration or the data that the user has to mend.
    """
    _check(cfg)
    from immunize.data.images import as_image_source

    source = as_image_source(build(cfg.pretrain))
    source.require()
    refuse_finished(folder, cfg.overwrite)
    check_folder(folder)
    say = teller(quiet)
    say(f"{cfg.model.name} on {source.name}, seed {cfg.seed}: loading")
    from lightning.pytorch import seed_everything

    from immunize.features import save_weights

    clock = time.perf_counter()
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "status": "started",
        "model": cfg.model.name,
        "pretrain": source.name,
        "seed": cfg.seed,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "config": resolved(cfg),
        "config_hash": config_hash(resolved(cfg)),
    }
    seed_everything(cfg.seed, workers=True, verbose=False)
    with cpu_threads(cfg.threads):
        record |= provenance()
        network, splits = _parts(cfg, source)
        with sigint_restored():
            status, steps, device = _fit(cfg, network, splits, quiet=quiet)
        record.update(status=status, data=source.describe(), data_hash=source.file_hash(), steps=steps)
        if status == "finished":
            say("measuring")
            record["accuracy"] = _accuracy(network.to(device), splits, cfg)
    record |= {"seconds": time.perf_counter() - clock, "peak_memory_mib": peak_memory_mib()}
    save_weights(folder / CHECKPOINT, network.state_dict(), {"config_hash": record["config_hash"]})
    write_record(folder, record)
    return record


def _check(cfg: DictConfig) -> None:
    check_schema(cfg, PretrainConfig)
    if cfg.model.get("kind") != "deep":
        raise UserError(f"model={cfg.model.name} is no network; choose a deep one, such as model=resnet_small")
    check_rules(cfg, RULES)
    if process_count(cfg.trainer) > 1 or started_outside():
        raise UserError("θ_0 is trained in one process: choose trainer=cpu or trainer=gpu with trainer.devices=1")
    OmegaConf.to_container(
        OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "model"]), resolve=True, throw_on_missing=True
    )


def _parts(cfg: DictConfig, source: ImageSource) -> tuple[nn.Module, ImageSplits]:
    """The network as it begins, every weight of it trainable, and the images as it wants them."""
    from immunize.running.assembling import arguments_of

    own = ALL_OF_IT if cfg.model.get("fresh_head") else FROM_SCRATCH
    node = OmegaConf.merge(cfg.model, {key: value for key, value in own.items() if key in cfg.model})
    assert isinstance(node, DictConfig)
    net: DeepExtractor = build(arguments_of(node), n_classes=source.n_classes, seed=cfg.seed)
    return net.network, source.splits(net.transform(train=cfg.augment), net.transform())


def _fit(cfg: DictConfig, network: nn.Module, splits: ImageSplits, *, quiet: bool) -> tuple[str, int, torch.device]:
    """Train in place; status, steps taken, and the device it ran on."""
    import logging

    from immunize.data.images.sampling import StreamSampler, stream_loader
    from immunize.objective import task_loss
    from immunize.running.experiment import quiet_lightning
    from immunize.training.callbacks import Throughput
    from immunize.training.supervised import SupervisedModule

    batches = max(1, len(splits.fit) // cfg.batch_size)
    sampler = StreamSampler(len(splits.fit), cfg.batch_size, batches, seed=cfg.seed, stream=0)
    module = SupervisedModule(
        network.train(),
        task_loss("ce", cfg.label_smoothing),
        learning_rate=cfg.learning_rate,
        momentum=cfg.momentum,
        weight_decay=cfg.weight_decay,
        steps=cfg.epochs * batches,
    )
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    trainer = build(
        cfg.trainer,
        max_epochs=cfg.epochs,
        gradient_clip_val=cfg.clip,
        callbacks=[Throughput("pre-training", quiet=quiet)],
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    status = "finished"
    try:
        with quiet_lightning():
            trainer.fit(module, stream_loader(splits.fit, sampler, workers=cfg.workers))
    except DivergedError as error:
        raise UserError(f"{error}; lower learning_rate") from error
    except (KeyboardInterrupt, SystemExit):
        status = "interrupted"
    network.eval()
    return status, trainer.global_step, trainer.strategy.root_device


def _accuracy(network: nn.Module, splits: ImageSplits, cfg: DictConfig) -> float:
    from immunize.features import extract

    logits, labels = extract(network, splits.held_out, workers=cfg.workers)
    return 100 * float((logits.argmax(1) == labels).double().mean())


@entry_point
def main() -> None:
    """Entry point of `python -m immunize.pretrain` and `immunize-pretrain`."""
    register()
    _hydra_main()


@hydra.main(version_base="1.3", config_path=config_dir(), config_name="pretrain_theta")
@explain_errors
def _hydra_main(cfg: DictConfig) -> None:
    """Print the accuracy, then the checkpoint's path as the last line of stdout."""
    from hydra.core.hydra_config import HydraConfig

    folder = Path(HydraConfig.get().runtime.output_dir)
    record = run(cfg, folder)
    if record["status"] != "finished":
        raise KeyboardInterrupt
    print(f"{record['model']} on {record['pretrain']}: {record['accuracy']:.2f} % top-1 on held-out images")
    print(f"record: {folder / RECORD}")
    print(folder / CHECKPOINT, flush=True)


if __name__ == "__main__":
    main()
