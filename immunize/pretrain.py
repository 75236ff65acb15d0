"""`python -m immunize.pretrain`: train a network on D_P, a θ_0 of one's own, which `model.checkpoint=` takes.

`main` only parses; :func:`run` does the work and returns the record.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from immunize.cli import command, output_folder, sigint_restored, teller
from immunize.config import config_hash, is_deep, resolved
from immunize.effects import asked_for, idle_data, idle_in_pretraining, refuse_idle, told
from immunize.errors import DivergedError, UserError
from immunize.instantiate import NOT_ARGUMENTS, build, build_source
from immunize.processes import process_count, started_outside
from immunize.records import CHECKPOINT, RECORD, begun, peak_memory_mib, provenance, write_record
from immunize.schemas import PretrainConfig
from immunize.settings import SEED, THREADS_OR_NULL, Rule, alone_in, check, check_folder, refuse_finished
from immunize.sweeping import done_record
from immunize.threads import cpu_threads, threads_in_force

if TYPE_CHECKING:
    from torch import nn

    from immunize.data.images.image_set import ImageSet
    from immunize.pipeline.fit import Fit

ALL_OF_IT = {"trainable": ["*"]}
"""What of θ_0 may change is a setting of immunization; here it is made."""

FROM_SCRATCH = {**ALL_OF_IT, "pretrained": False, "checkpoint": None, "fresh_head": False}
"""The same where no new head is put on a network that is there: the weights are random."""

RULES: tuple[Rule, ...] = (
    SEED,
    ("epochs", lambda value: value >= 1, "at least 1"),
    ("batch_size", lambda value: value >= 1, "at least 1"),
    ("learning_rate", lambda value: 0 < value < math.inf, "positive and finite"),
    ("weight_decay", lambda value: 0 <= value < math.inf, "a finite number ≥ 0"),
    ("clip", lambda value: value is None or 0 < value < math.inf, "positive and finite, or null"),
    ("label_smoothing", lambda value: 0 <= value < 1, "in [0, 1)"),
    ("validation_fraction", lambda value: 0 <= value <= 0.9, "between 0 and 0.9"),
    ("workers", lambda value: value >= 0, "at least 0"),
    THREADS_OR_NULL,
)


def run(cfg: DictConfig, folder: Path, *, quiet: bool = False, given: Sequence[str] = ()) -> dict[str, Any]:
    """Train from random weights, or from the model's own under a new head, and write record and checkpoint.

    The latter with `model.fresh_head=true`. The files are `record.json` and `checkpoint.safetensors` in `folder`. An
    interrupted training goes on with `resume=true`, to the weights of one that was never interrupted.

    Args:
        cfg: the composed configuration (`conf/pretrain_theta.yaml`).
        folder: the output folder.
        quiet: show no progress.
        given: settings that somebody has asked for, which have to have an effect.

    Returns:
        The record, as written: with `accuracy`, top-1 on held-out images, percent, if the training finished; with
        `resume`, the one that is there if it needs no repeating.

    Raises:
        UserError: anything in the configuration or the data that the user has to mend.
        SystemExit: SIGTERM; what was trained so far is kept for `resume=true`.
    """
    cfg = _checked(cfg)
    from immunize.data.images.source import as_image_source

    source = as_image_source(build_source(cfg.pretrain, "pretrain"))
    source.require()
    whole = resolved(cfg)
    hashed = config_hash(whole)
    if cfg.resume and not cfg.overwrite and (done := done_record(folder, hashed)) is not None:
        return done
    weights = {"fresh_head": bool(cfg.model.get("fresh_head")), "from_file": cfg.model.get("checkpoint") is not None}
    idle = idle_data(whole, "images") | idle_in_pretraining(**weights)
    refuse_idle(given, idle)
    refuse_finished(folder, cfg.overwrite)
    check_folder(folder)
    teller(quiet)(f"{cfg.model.name} on {source.name}, seed {cfg.seed}: loading")
    from lightning.pytorch import seed_everything

    from immunize.data.images.pair import without_aside
    from immunize.features.weights import save_weights
    from immunize.pipeline.assemble import as_extractor, theta_0_facts
    from immunize.pipeline.fit import TRAINING

    clock = time.perf_counter()
    record: dict[str, Any] = {
        **begun(),
        "model": cfg.model.name,
        "pretrain": source.name,
        "seed": cfg.seed,
        **told(whole, idle, hashed),
    }
    seed_everything(cfg.seed, workers=True, verbose=False)
    with alone_in(folder, cfg.overwrite), cpu_threads(threads_in_force(cfg.threads)):
        record |= provenance()
        own = ALL_OF_IT if cfg.model.get("fresh_head") else FROM_SCRATCH
        node = OmegaConf.merge(cfg.model, {key: value for key, value in own.items() if key in cfg.model})
        assert isinstance(node, DictConfig)
        net = as_extractor(build(node, leave_out=NOT_ARGUMENTS, n_classes=source.n_classes, seed=cfg.seed))
        record["network"] = theta_0_facts(net, node.get("checkpoint"))
        splits = source.splits(net.transform(train=cfg.augment), net.transform())
        if cfg.validation_fraction > 0:
            splits, _ = without_aside(splits, cfg.validation_fraction, seed=cfg.seed, role="pretrain")
        with sigint_restored():
            begun_with = f"{hashed} {record['network']['theta_0_sha256']}"
            fit = _fit(cfg, net.network, splits.fit, folder / TRAINING, begun_with, quiet=quiet)
        record.update(status=fit.status, data=source.describe(), data_hash=source.file_hash(), steps=fit.steps)
        if fit.status == "finished":
            teller(quiet)("measuring")
            record["accuracy"] = _accuracy(net.network, splits.held_out, cfg.workers)
        record["training"] = {"seconds": fit.seconds, **fit.facts}
        record |= {"seconds": time.perf_counter() - clock, "peak_memory_mib": peak_memory_mib()}
        if fit.status == "finished":
            save_weights(folder / CHECKPOINT, net.network.state_dict(), {"config_hash": hashed})
        else:
            (folder / CHECKPOINT).unlink(missing_ok=True)  # of a run that this one was to replace
        write_record(folder, record)
    if fit.signal:
        raise SystemExit(128 + fit.signal)
    if fit.status == "finished":
        (folder / TRAINING).unlink(missing_ok=True)
    return record


def _checked(cfg: DictConfig) -> DictConfig:
    """The settings, of a network that is trained in one process, every part of it.

    Raises:
        UserError: others.
    """
    if OmegaConf.is_missing(cfg.model, "trainable"):  # model=timm has no default
        cfg = DictConfig(OmegaConf.merge(cfg, {"model": ALL_OF_IT}))
    if not is_deep(cfg):
        raise UserError(f"model={cfg.model.name} is no network; choose a deep one, such as model=resnet_small")
    check(cfg, PretrainConfig, RULES)
    if process_count(cfg.trainer) > 1 or started_outside():
        raise UserError("θ_0 is trained in one process: choose trainer=cpu or trainer=gpu with trainer.devices=1")
    OmegaConf.to_container(
        OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "model"]), resolve=True, throw_on_missing=True
    )
    return cfg


def _fit(
    cfg: DictConfig, network: nn.Module, images: ImageSet, checkpoint: Path, begun_with: str, *, quiet: bool
) -> Fit:
    """Train in place, from where the checkpoint says if the training is to go on; the network is on its device."""
    from immunize.data.images.pair import StreamSampler, stream_loader
    from immunize.objective import task_loss
    from immunize.pipeline.assemble import new_trainer
    from immunize.pipeline.fit import train
    from immunize.training.callbacks import Progress, Resuming
    from immunize.training.module import SupervisedModule

    batches = max(1, len(images) // cfg.batch_size)
    sampler = StreamSampler([range(len(images))], cfg.batch_size, batches, seed=cfg.seed, stream=0)
    resuming = Resuming(checkpoint, begun_with, resume=bool(cfg.resume and not cfg.overwrite))
    if resuming.place is not None:
        sampler.leave_out(*resuming.place)
    module = SupervisedModule(
        network.train(),
        task_loss("ce", cfg.label_smoothing),
        learning_rate=cfg.learning_rate,
        weight_decay=cfg.weight_decay,
    )
    callbacks = [Progress("pre-training", quiet=quiet), resuming]
    own = {"max_epochs": cfg.epochs, "gradient_clip_val": cfg.clip}
    trainer = new_trainer(partial(build, cfg.trainer), [], callbacks, **own)
    loader = stream_loader(images, sampler, workers=cfg.workers)
    try:
        fit = train(module, loader, trainer, label="", checkpoint=resuming.begins_with)
    except DivergedError as error:
        raise UserError(f"{error}; lower learning_rate") from error
    network.to(trainer.strategy.root_device).eval()
    return fit


def _accuracy(network: nn.Module, images: ImageSet, workers: int) -> float:
    """Top-1, percent."""
    from immunize.features.extract import device_of, extract
    from immunize.spectrum.separability import share_right

    dtype = next(network.parameters()).dtype  # the trainer's precision
    logits, labels = extract(lambda x: network(x.to(dtype)), images, workers=workers, device=device_of(network))
    return 100 * float(share_right(logits, labels))


@command("pretrain_theta")
def main(cfg: DictConfig) -> None:
    """Print the accuracy, then the checkpoint's path as the last line of stdout."""
    folder = output_folder()
    record = run(cfg, folder, given=asked_for())
    if record["status"] != "finished":
        raise KeyboardInterrupt
    print(f"{record['model']} on {record['pretrain']}: {record['accuracy']:.2f} % top-1 on held-out images")
    print(f"record: {folder / RECORD}")
    print(folder / CHECKPOINT, flush=True)


if __name__ == "__main__":
    main()
