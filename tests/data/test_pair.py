"""The paired data module: batches, validation rows, cross-fitting, hash, parts, seeded draws, and what it refuses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader

from immunize.data import ROLES, Part, Splits
from immunize.data.pair import PairedData
from immunize.data.splits import random_generator
from immunize.data.synthetic import Synthetic
from immunize.errors import DataError


class Rows:
    """A source of numbered rows: x[i] = [i + 1, offset], y[i] = i."""

    task = "regression"

    def __init__(self, n: int, offset: float = 0.0, held_out: bool = True) -> None:
        self.name, self.offset = f"rows{n}", offset
        self.splits = Splits(self.make(range(n)), self.make(range(n, 2 * n)) if held_out else None)
        self.held_out_protocol = "split" if held_out else "cross_fit"

    def make(self, rows: range) -> Part:
        y = torch.tensor(rows, dtype=torch.float64)
        return Part(torch.stack([y + 1, torch.full_like(y, self.offset)], dim=1), y)

    def load(self) -> Splits:
        return self.splits

    def cross_fit(self, seed: int) -> Splits:
        order = torch.randperm(len(self.splits.fit), generator=torch.Generator().manual_seed(seed))
        half = len(order) // 2
        return Splits(self.splits.fit.take(order[:half]), self.splits.fit.take(order[half:]))


def module(n_pretrain: int = 10, n_harmful: int = 6, **options: Any) -> PairedData:
    data = PairedData(Rows(n_pretrain), Rows(n_harmful, offset=1.0), **options)
    data.setup()
    return data


def batches(loader: CombinedLoader) -> list[dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    return [batch for batch, _, _ in loader]


def order(loader: CombinedLoader, role: str = "pretrain") -> list[float]:
    return torch.cat([batch[role][1] for batch in batches(loader)]).tolist()


def test_full_batch_yields_the_whole_pair_in_every_pass_without_copying() -> None:
    data = module(passes=3)
    found = batches(data.train_dataloader())
    assert (data.full_batch, len(found)) == (True, 3)
    for batch in found:
        assert set(batch) == set(ROLES)
        for role in ROLES:
            part = data.fit[role]
            for given, own in zip(batch[role], (part.x, part.y), strict=True):
                assert torch.equal(given, own)
                assert given.data_ptr() == own.data_ptr()


@pytest.mark.parametrize(("mode", "length"), [("max_size_cycle", 5), ("min_size", 3)])
def test_mini_batches_visit_every_row_once_a_pass(mode: str, length: int) -> None:
    data = module(batch_size=2, mode=mode)
    loader = data.train_dataloader()
    found = batches(loader)
    assert (data.full_batch, len(found)) == (False, length)
    for batch in found:
        for x, y in batch.values():
            assert x.shape == (2, 2)
            assert torch.equal(x[:, 0], y + 1)  # features and targets stay together
    assert sorted(order(loader, "harmful")[:6]) == list(range(6))
    assert len(set(order(loader))) == 2 * length


def test_incomplete_last_batch_is_dropped_unless_it_is_the_only_one() -> None:
    for size, expected in ((8, [(8, 6)]), (4, [(4, 4), (4, 4)])):
        found = batches(module(batch_size=size).train_dataloader())
        assert [(len(batch["pretrain"][1]), len(batch["harmful"][1])) for batch in found] == expected


def test_order_depends_on_the_seed_alone_and_differs_between_passes_and_roles() -> None:
    first, again, other = (module(100, 100, batch_size=10, seed=seed).train_dataloader() for seed in (1, 1, 2))
    expected = order(first)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert order(again) == expected != order(other)
    assert torch.equal(torch.get_rng_state(), state)  # nothing was drawn from the global generator
    assert order(first) != expected
    assert len({tuple(order(module(100, 100, batch_size=10).train_dataloader(), role)) for role in ROLES}) == 2


def test_validation_rows_leave_the_fit_part() -> None:
    assert module().validation is None
    data = module(20, 10, validation_fraction=0.2, seed=5)
    for role, n in (("pretrain", 20), ("harmful", 10)):
        stays, aside = data.fit[role], data.validation[role]
        assert (len(stays), len(aside)) == (n - n // 5, n // 5)
        assert sorted(torch.cat([stays.y, aside.y]).tolist()) == list(range(n))
    again, other = (module(20, 10, validation_fraction=0.2, seed=seed) for seed in (5, 6))
    assert torch.equal(again.fit["pretrain"].y, data.fit["pretrain"].y)
    assert not torch.equal(other.fit["pretrain"].y, data.fit["pretrain"].y)


def test_cross_fitting_either_data_set_cross_fits_the_pair() -> None:
    data = PairedData(Rows(10, held_out=False), Rows(6), batch_size=2, passes=3, mode="min_size", seed=4)
    data.setup()
    assert data.held_out_protocol == "cross_fit"
    assert data.held_out is None
    second = data.cross_fit_pair(seed=7)
    second.setup()
    assert (second.batch_size, second.passes, second.mode, second.seed) == (2, 3, "min_size", 4)
    halves = torch.cat([second.fit["pretrain"].y, second.held_out["pretrain"].y])
    assert len(second.fit["pretrain"]) == 5
    assert sorted(halves.tolist()) == list(range(10))
    assert second.held_out["harmful"].y.tolist() == [6, 7, 8, 9, 10, 11]  # keeps its split
    assert second.data_hash != data.data_hash


def test_hash_is_of_the_data_and_nothing_else() -> None:
    changed, renamed = Rows(6, offset=1.0), Rows(10)
    changed.splits.held_out.y[0] += 1e-12  # type: ignore[union-attr]
    renamed.name = "other"
    others = PairedData(Rows(10), changed), PairedData(renamed, Rows(6, offset=1.0)), module(n_pretrain=11)
    reference = module().data_hash
    assert len({reference, *(other.data_hash for other in others)}) == 4
    assert module(batch_size=2, seed=9, passes=4, validation_fraction=0.4).data_hash == reference


@pytest.mark.parametrize("room", [True, False])
def test_rows_on_disk_are_read_again_and_stay_where_there_is_no_room(
    room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = module(validation_fraction=0.4)
    coordinates, before = data.in_coordinates(torch.eye(2, dtype=torch.float64)), (data.fit, data.validation)
    assert not {"_loaded", "_split"} & vars(coordinates).keys()  # it holds no rows but its own
    hashed, held_out = data.data_hash, data.held_out
    for source in data.sources.values():
        source.splits = None  # nobody asks it again
    if not room:
        monkeypatch.setattr("tempfile.TemporaryFile", lambda: Path("/dev/full").open("wb"))  # noqa: SIM115
    data.to_disk()
    assert vars(data).keys().isdisjoint(("_loaded", "_split", "fit", "validation", "held_out")) is room
    for again, first in zip((data.fit, data.validation, data.held_out), (*before, held_out), strict=True):
        for role in ROLES:
            torch.testing.assert_close(vars(again[role]), vars(first[role]), rtol=0, atol=0)
    assert data.data_hash == hashed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 11}, r"larger than both data sets \(rows10: 10 rows, rows6: 6 rows\)"),
        ({"validation_fraction": 0.1}, r"the 10 rows of rows10 \(pretrain\) into 9 and 1"),
        ({"validation_fraction": 0.8}, r"the 6 rows of rows6 \(harmful\) into 1 and 5"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        module(**options)


def of(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (of([1, math.nan], [1, -math.inf]), None, r"rows4 \(harmful, fit\): 2 features are NaN or Inf, .* in column 1"),
        (torch.ones(4, 2).double(), of([0, math.inf, 1, 2])[0], r"rows4 \(harmful, fit\): 1 targets are NaN or Inf"),
        *((torch.ones(n, 2).double(), None, rf"rows4 \(harmful, fit\): N = {n} rows") for n in (0, 1)),
        *((torch.zeros(4, width).double(), None, "a matrix of zeros") for width in (2, 0)),
        *((size * torch.eye(4, 2).double(), None, "a size of 1e.160, .* the unit") for size in (1e160, 1e-160)),
        (torch.ones(4, 2).double(), None, r"all 2 columns are constant \(0, 1\): the 4 rows are one and the same"),
        (torch.eye(4, 3).double(), None, r"rows4.*has 2 features.*rows4.*has 3; one extractor"),
        (torch.ones(4, 2), None, r"torch\.float32 features"),
        (torch.ones(4, 2).double(), torch.zeros(3).double(), r"features of shape \(4, 2\) and targets of shape \(3,\)"),
    ],
)
def test_rows_that_cannot_be_learned_from_are_refused(x: torch.Tensor, y: torch.Tensor | None, message: str) -> None:
    source = Rows(4, held_out=False)
    source.splits = Splits(Part(x, torch.zeros(len(x), dtype=torch.float64) if y is None else y), None)
    with pytest.raises(DataError, match=message):
        PairedData(Rows(4), source).setup()


@pytest.mark.parametrize(
    ("task", "y"),
    [
        ("regression", torch.arange(4)),
        ("binary", of([-1, 1, 1, 1])[0]),
        ("binary", torch.ones(4, dtype=torch.int64)),
        ("classification", of([0, 1, 1, 1])[0]),
        ("classification", torch.arange(4) - 1),
        ("multiclass", torch.arange(4)),
    ],
)
def test_targets_have_to_be_those_of_the_task(task: str, y: torch.Tensor) -> None:
    source = Rows(4)
    source.task = task
    source.splits = Splits(source.splits.fit, Part(source.splits.fit.x, y))
    with pytest.raises(DataError, match=rf"rows4 \(harmful, (fit|held_out)\): targets of a {task} task have to be"):
        PairedData(Rows(4), source).setup()


def test_held_out_rows_are_checked_too() -> None:
    source = Rows(4)
    source.splits.held_out.x[2, 0] = math.nan
    with pytest.raises(DataError, match=r"rows4 \(pretrain, held_out\): 1 features are NaN"):
        PairedData(source, Rows(4)).setup()
    narrow = Rows(4)
    narrow.splits = Splits(narrow.splits.fit, Part(torch.ones(4, 1, dtype=torch.float64), narrow.splits.fit.y))
    with pytest.raises(DataError, match="1 features held out and 2 in fit"):
        PairedData(narrow, Rows(4)).setup()
    for seed, protocol in {None: "split", 0: "cross_fit"}.items():
        source.splits, source.held_out_protocol = Splits(source.splits.fit, None), protocol
        source.cross_fit = lambda _: source.splits  # type: ignore[method-assign]
        with pytest.raises(DataError, match=r"rows4 \(pretrain\): there are no held-out rows; .* cross_fit\(seed\)"):
            PairedData(source, Rows(4), cross_fit=seed).setup()


def test_generators_are_reproducible_and_distinct() -> None:
    draws = {args: random_generator(*args).integers(1 << 60) for args in [(0,), (1,), (0, 1), (0, 2), (0, 0, 1)]}
    assert len(set(draws.values())) == len(draws)
    assert random_generator(0, 1).integers(1 << 60) == draws[0, 1]


def test_wrong_seeds_and_roles_are_refused() -> None:
    for seed in (-1, 1.5, "0", True, None):
        with pytest.raises(DataError, match="seed has to be a whole number"):
            random_generator(seed)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="role is 'benign', but has to be one of pretrain, harmful"):
        Synthetic("benign")
