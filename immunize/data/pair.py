"""D_P and D_H side by side: the LightningDataModule of every immunization run (Alg. 1, lines 1-2; Eq. 11).

Each training batch is ``{"pretrain": (x, y), "harmful": (x, y)}``: full-batch, Algorithm 1 on the exact K, one pass
being one step, or mini-batches, of which the data sets may have different numbers; Lightning's CombinedLoader mode says
what happens to the shorter one.

Shapes: N samples, D features.
"""

from __future__ import annotations

import contextlib
import copy
import tempfile
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from io import BufferedRandom
from typing import Any, Literal, cast

import numpy as np
import torch
from lightning import LightningDataModule
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from immunize.data.loading import LoadedPair, load_pair
from immunize.data.splits import ROLES, Part, Parts, Role, SourceBase, Standardizer, random_generator
from immunize.errors import DataError

Rows = np.ndarray[Any, np.dtype[np.int64]]
Mode = Literal["max_size_cycle", "min_size"]
"""CombinedLoader's modes in which every batch holds rows of both data sets; an objective needs both."""

VALIDATION_STREAM, SHUFFLE_STREAM = 0, 1


class Pair(LightningDataModule):
    """What rows and images have in common: two sources, how they are batched, and what is set aside.

    Args:
        sources: of D_P and D_H.
        batch_size: of each data set in a mini-batch; None for full-batch.
        mode: CombinedLoader's mode.
        validation_fraction: share of the fit rows of each data set that is set aside, 0 to 0.9.
        seed: of the validation split and of the order.
    """

    def __init__(
        self, sources: dict[Role, Any], *, batch_size: int | None, mode: str, validation_fraction: float, seed: int
    ) -> None:
        super().__init__()
        self.sources, self.batch_size, self.mode = sources, batch_size, mode
        self.validation_fraction, self.seed = validation_fraction, seed

    @property
    def full_batch(self) -> bool:
        """Whether a training batch is the whole pair."""
        return self.batch_size is None

    @property
    def tasks(self) -> dict[str, str]:
        """For each role "regression", "binary" or "classification"."""
        return {role: self.sources[role].task for role in ROLES}

    @property
    def held_out_protocol(self) -> str:
        """How the pair comes by held-out rows: "cross_fit" if either data set has none of its own, else "split"."""
        return "cross_fit" if "cross_fit" in {of.held_out_protocol for of in self.sources.values()} else "split"

    @property
    @abstractmethod
    def data_hash(self) -> str:
        """SHA-256 of both data sets."""

    def describe(self) -> dict[str, Any]:
        """What both data sets are, for a record."""
        return {role: self.sources[role].describe() for role in ROLES}

    def train_dataloader(self) -> CombinedLoader:
        """Batches of both data sets.

        Returns:
            a loader of ``{"pretrain": (x, y), "harmful": (x, y)}``. Of rows, full-batch, it has `passes` batches, which
            are views of the rows and must not be written into. Of images, x is (B / processes, 3, H, W) float32, y
            int64, and its samplers have `set_epoch`, which Lightning calls.

        Raises:
            DataError: if a batch of images cannot be shared equally by the processes.
        """
        return CombinedLoader({role: self._train_loader(role) for role in ROLES}, cast(Mode, self.mode))

    @abstractmethod
    def _train_loader(self, role: Role) -> DataLoader[Any]:
        """Batches of one data set."""

    def _check_sizes(self, sizes: dict[Role, int]) -> None:
        if self.batch_size is not None and self.batch_size > max(sizes.values()):
            told = ", ".join(f"{self.sources[role].name}: {sizes[role]} rows" for role in ROLES)
            raise DataError(
                f"objective.batch_size={self.batch_size} is larger than both data sets ({told}); choose a smaller one, "
                "or for a linear model null, for full-batch steps"
            )


def set_aside(n: int, validation_fraction: float, *, seed: int, role: Role, what: str) -> tuple[Rows, Rows]:
    """Split the rows that are fitted on into what stays and what is for validation.

    Args:
        n: N.
        validation_fraction: share that is set aside, rounded to whole rows.
        seed: of the draw.
        role: whose rows they are; D_P and D_H are drawn independently of each other.
        what: they are, for messages: how many of what.

    Returns:
        indices of both, int64, in ascending order.

    Raises:
        DataError: if either part would have fewer than 2 rows.
    """
    n_aside = round(n * validation_fraction)
    if min(n_aside, n - n_aside) < 2:
        raise DataError(
            f"{validation_fraction=} splits the {what} into {n - n_aside} and {n_aside}, but both parts "
            "need at least 2; choose another fraction"
        )
    order = random_generator(seed, VALIDATION_STREAM, ROLES.index(role)).permutation(n)
    return np.sort(order[n_aside:]), np.sort(order[:n_aside])


def part_in_two(part: Part, validation_fraction: float, *, seed: int, role: Role, what: str) -> tuple[Part, Part]:
    """The rows of a part that stay, and those that are for validation; see :func:`set_aside`."""
    stays, aside = set_aside(len(part), validation_fraction, seed=seed, role=role, what=what)
    return part.take(torch.from_numpy(stays)), part.take(torch.from_numpy(aside))


class PairedData(Pair):
    """Both data sets of an experiment, checked, hashed and batched; read when `setup` or one of its rows is asked for.

    Args:
        pretrain: D_P.
        harmful: D_H.
        batch_size: None for full-batch, else the rows of each data set in a mini-batch.
        passes: full-batch only: how many times the whole pair is yielded within one epoch. It saves Lightning's work
            between epochs, which would otherwise cost more than the step.
        mode: CombinedLoader's mode.
        validation_fraction: share of the fit rows of each data set that is set aside for early stopping, 0 to 0.9.
        seed: of the validation split and of the shuffling.
        cross_fit: seed of the halves that a data set without held-out rows of its own is split into; None: it is not.
    """

    def __init__(
        self,
        pretrain: SourceBase,
        harmful: SourceBase,
        *,
        batch_size: int | None = None,
        passes: int = 1,
        mode: str = "max_size_cycle",
        validation_fraction: float = 0.0,
        seed: int = 0,
        cross_fit: int | None = None,
    ) -> None:
        sources: dict[Role, Any] = {"pretrain": pretrain, "harmful": harmful}
        super().__init__(sources, batch_size=batch_size, mode=mode, validation_fraction=validation_fraction, seed=seed)
        self.passes, self.cross_fit = passes, cross_fit
        self._on_disk: tuple[BufferedRandom, LoadedPair] | None = None

    @cached_property
    def _loaded(self) -> LoadedPair:
        if self._on_disk is None:
            return load_pair(*(self.sources[role] for role in ROLES), cross_fit=self.cross_fit)
        file, without = self._on_disk
        file.seek(0)

        def with_features(part: Part) -> Part:
            rows = np.empty((len(part.y), part.x.shape[1]))
            file.readinto(rows.data)
            return Part(torch.from_numpy(rows), part.y)

        return replace(without, splits={role: of.mapped(with_features) for role, of in without.splits.items()})

    @cached_property
    def _split(self) -> tuple[Parts, Parts | None]:
        """The fit rows of every data set in two: what stays, and what is for validation."""
        fit = {role: splits.fit for role, splits in self._loaded.splits.items()}
        self._check_sizes({role: len(part) for role, part in fit.items()})
        if self.validation_fraction == 0:
            return fit, None
        stays: Parts = {}
        aside: Parts = {}
        for role, part in fit.items():
            what = f"{len(part)} rows of {self.sources[role].name} ({role})"
            stays[role], aside[role] = part_in_two(part, self.validation_fraction, seed=self.seed, role=role, what=what)
        return stays, aside

    @cached_property
    def fit(self) -> Parts:
        """Rows the extractor is immunized with, without the validation rows."""
        return self._split[0]

    @cached_property
    def validation(self) -> Parts | None:
        """Rows set aside for early stopping; None for a fraction of 0."""
        return self._split[1]

    @cached_property
    def held_out(self) -> Parts | None:
        """Rows that training never sees; None if either data set has none and is cross-fitted."""
        parts = {role: of.held_out for role, of in self._loaded.splits.items() if of.held_out is not None}
        return parts if len(parts) == len(ROLES) else None

    @property
    def n_features(self) -> int:
        """D, the same for both data sets."""
        return int(self.fit["pretrain"].x.shape[1])

    def n_outputs(self, role: Role) -> int:
        """C of a classification; 1 for a regression or the two classes of a binary task."""
        parts = [of[role].y for of in (self.fit, self.validation, self.held_out) if of is not None]
        return 1 if parts[0].is_floating_point() else 1 + max(int(y.max()) for y in parts)

    @property
    def data_hash(self) -> str:
        """SHA-256 over names, shapes and bytes of all fit and held-out rows; validation rows count as fit rows."""
        return self._loaded.hash

    def describe(self) -> dict[str, Any]:
        """The same, and how many rows of them are immunized on."""
        both = super().describe()
        told: dict[str, Any] = {role: both[role] | {"fit_rows": len(self.fit[role])} for role in ROLES}
        if self.scale is not None:
            told["harmful"]["constant_columns"] = self.scale.dropped
        return told

    @property
    def scale(self) -> Standardizer | None:
        """What the rows were standardized by; None where they are as they were read."""
        return self._loaded.scale

    def setup(self, stage: str | None = None) -> None:
        """Load both data sets, check them, and set validation rows aside; does nothing the second time.

        Args:
            stage: ignored: every stage needs the same rows.

        Raises:
            MissingDataError: if a data set is not there.
            DataError: if one cannot be used, or they do not go together.
        """
        _ = self.fit

    def to_disk(self) -> None:
        """Put the features into a file without a name, and let go of them until somebody asks for a row.

        Where there is no room for the file they stay.
        """
        with contextlib.suppress(OSError):
            file, loaded = tempfile.TemporaryFile(), self._loaded  # noqa: SIM115

            def put(part: Part) -> Part:
                file.write(part.x.contiguous().numpy().data)
                return Part(part.x[:0].clone(), part.y)

            without = replace(loaded, splits={role: of.mapped(put) for role, of in loaded.splits.items()})
            file.flush()
            self._on_disk = file, without
            self._forget()

    def _forget(self) -> None:
        for name in ("_loaded", "_split", "fit", "validation", "held_out"):
            self.__dict__.pop(name, None)

    def in_coordinates(self, basis: Tensor) -> PairedData:
        """The same pair with each row x of `fit` and `validation` replaced by its coordinates x @ basis.

        Args:
            basis: (D, n) float64 with orthonormal columns that span the fit rows; what it does not span of validation
                rows is lost.

        Returns:
            a pair of n features, set up, without held-out rows, which the basis need not span.
        """

        def mapped(parts: Parts) -> Parts:
            return {role: Part(part.x @ basis, part.y) for role, part in parts.items()}

        other = copy.copy(self)
        other._forget()
        other.fit, other.validation = mapped(self.fit), None if self.validation is None else mapped(self.validation)
        other.held_out = None
        return other

    def cross_fit_pair(self, seed: int) -> PairedData:
        """The pair for a second extractor, fitted the same way on half of the rows and measured on the other half.

        Args:
            seed: of the halves.

        Returns:
            a new data module with the same options, not yet set up. Data sets with held-out rows of their own keep
            their split.
        """
        other = copy.copy(self)
        other._forget()
        other.cross_fit, other._on_disk = seed, None
        return other

    def _train_loader(self, role: Role) -> DataLoader[Any]:
        """One pass. An incomplete last batch is dropped, unless it is the only one: few rows make a noisy spectrum."""
        part, seed = self.fit[role], 0
        # All rows at once, by a slice and not a list of indices: it gives views, so that a batch copies nothing.
        sampler: Iterable[Any] = [slice(None)] * self.passes
        if self.batch_size is not None:
            seed = int(random_generator(self.seed, SHUFFLE_STREAM, ROLES.index(role)).integers(2**31))
            order = RandomSampler(range(len(part)), generator=torch.Generator().manual_seed(seed))
            sampler = BatchSampler(order, self.batch_size, drop_last=len(part) >= self.batch_size)
        # The loader draws a number of its own on every pass; without a second generator it would take it from the
        # global state and thereby change every random number of the run that is drawn later.
        generator = torch.Generator().manual_seed(seed)
        rows = TensorDataset(part.x, part.y)
        return DataLoader(rows, sampler=sampler, batch_size=None, generator=generator)
