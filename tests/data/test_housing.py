"""House Prices: the protocol of C.2 on a generated table with the real header, and on the real one where it is."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.preprocessing import LabelEncoder

from immunize.data.housing import COLUMNS, Housing, encode
from immunize.data.splits import Standardizer
from immunize.errors import DataError, MissingDataError

TEXT_COLUMNS = {"MSZoning", "Street", "Alley", "Neighborhood", "MasVnrType", "PoolQC"}
TARGETS = {"pretrain": "LotArea", "harmful": "SalePrice"}
N_ROWS = 61


def fake_table() -> pd.DataFrame:
    """A table with the real header: numbers, categories, missing entries, and constant columns."""
    rng = np.random.default_rng(0)
    table = {name: rng.integers(0, 50, N_ROWS).astype(object) for name in COLUMNS}
    for name in TEXT_COLUMNS:
        table[name] = rng.choice(["Abc", "None", "xyz", "10"], N_ROWS).astype(object)
    table["Id"] = np.arange(1, N_ROWS + 1)
    table["MSZoning"] = np.where(np.arange(N_ROWS) % 4 == 0, rng.choice(["RM", "FV"], N_ROWS), "RL")
    table["LotFrontage"][::7] = np.nan
    table["Alley"][::3] = np.nan
    table["GarageArea"] = np.full(N_ROWS, 0.1)
    return pd.DataFrame(table)[list(COLUMNS)]


def write_csv(root: Path, table: pd.DataFrame) -> None:
    path = root / "house_prices" / "train.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, na_rep="NA")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_csv(tmp_path, fake_table())
    return tmp_path


def naive(table: pd.DataFrame, role: str) -> tuple[np.ndarray, np.ndarray]:
    """The protocol a column at a time."""
    rows = table[(table["MSZoning"] == "RL") == (role == "harmful")]
    columns = []
    for name in [*(name for name in COLUMNS if name not in TARGETS.values()), TARGETS[role]]:
        cells = rows[name].where(rows[name].notna() & (rows[name] != "None"), 0)
        numbers = LabelEncoder().fit_transform(cells.map(str)) if name in TEXT_COLUMNS else cells.astype(float)
        columns.append((numbers - numbers.mean()) / (np.std(numbers, ddof=1) if len(set(numbers)) > 1 else 1.0))
    array = np.array(columns).T
    return array[:, :-1], array[:, -1]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("role", ["pretrain", "harmful"])
def test_protocol_against_the_slow_way(root: Path, role: str) -> None:
    splits = Housing(root, role).load()
    x, y = naive(fake_table(), role)
    assert splits.held_out is None
    np.testing.assert_allclose(splits.fit.x.numpy(), x, rtol=0, atol=1e-12, strict=True)
    np.testing.assert_allclose(splits.fit.y.numpy(), y, rtol=0, atol=1e-12, strict=True)


def test_rows_takes_the_first_ones_of_the_role(root: Path) -> None:
    table = fake_table()
    first = table[table["MSZoning"] == "RL"].head(20)
    assert np.allclose(Housing(root, "harmful", rows=20).load().fit.x.numpy(), naive(first, "harmful")[0], atol=1e-12)
    assert len(Housing(root, "harmful", rows=10_000).load().fit) == (table["MSZoning"] == "RL").sum()


def test_codes_are_those_of_the_released_codes_encoder() -> None:
    texts = ["Zebra", "abc", "Abc", "10", "9", "é", "e", " ", "", "1Fam", "\U0001f3e0", "０"] * 2
    assert encode(pd.DataFrame({"a": texts}))[:, 0].tolist() == LabelEncoder().fit_transform(texts).tolist()


def test_standardizer_of_a_constant_column() -> None:
    values = np.array([[0.1, 1.0], [0.1, 2.0], [0.1, 3.0]])
    scale = Standardizer.of(values)
    assert scale.std.tolist() == [math.inf, 1.0]
    assert scale.apply(np.array([[7.0, 2.0]])).tolist() == [[0.0, 0.0]]  # unknown to these rows, so dropped from others
    assert scale.apply(values).tolist() == [[0.0, -1.0], [0.0, 0.0], [0.0, 1.0]]
    but_for_rounding = np.column_stack([np.where(np.arange(10) % 2, 0.3, 0.1 + 0.2), np.arange(10.0)])
    assert Standardizer.of(but_for_rounding).dropped == [0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("role", ["pretrain", "harmful"])
def test_cross_fit_halves_every_row_once_by_its_seed_in_units_of_the_fit_half(root: Path, role: str) -> None:
    table = fake_table()
    ids = table[(table["MSZoning"] == "RL") == (role == "harmful")]["Id"].to_numpy(dtype=float)
    splits, again, other = (Housing(root, role).cross_fit(seed) for seed in (0, 0, 1))
    fit, held_out = (torch.column_stack([part.x, part.y]) for part in (splits.fit, splits.held_out))
    assert len(fit) == (len(ids) + 1) // 2
    # Id is the first column and strictly increasing, so an affine map finds every row again.
    together = np.sort(np.concatenate([fit[:, 0], held_out[:, 0]]))
    assert np.allclose((together - together[0]) / (together[-1] - together[0]), (ids - ids[0]) / (ids[-1] - ids[0]))
    assert torch.equal(again.fit.x, splits.fit.x)
    assert not torch.equal(other.fit.x, splits.fit.x)
    varying = fit.std(dim=0) > 0
    assert torch.allclose(fit.mean(dim=0), torch.zeros(80, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(fit[:, varying].std(dim=0), torch.ones(1, dtype=torch.float64))
    assert float(held_out.mean(dim=0).abs().max()) > 0.05  # not centred with its own mean


def test_too_few_rows_are_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="3 rows are too few to cross-fit"):
        Housing(root, "harmful", rows=3).cross_fit(0)
    write_csv(tmp_path, fake_table().assign(MSZoning=["RM"] + ["RL"] * (N_ROWS - 1)))
    with pytest.raises(DataError, match=r"housing \(pretrain\): the table has 1 row of this zone"):
        Housing(tmp_path, "pretrain").load()


def test_missing_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    told = "house_prices/train.csv.*https://www.kaggle.com.*data_root=.*IMMUNIZE_DATA.*harmful.source=openml"
    with pytest.raises(MissingDataError, match=f"{tmp_path}/{told}"):
        Housing(tmp_path, "harmful").load()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (fake_table().drop(columns=["Street", "SalePrice"]), r"lacks 2 of 81 columns \(Street, SalePrice\)"),
        (fake_table().assign(extra=1), r"1 columns too many \(extra\)"),
        (fake_table().head(0), "has a header but no rows"),
        (fake_table().assign(SalePrice="much"), "target SalePrice has entries that are missing or not numbers"),
        (fake_table().assign(LotArea=[np.nan] + [1.0] * (N_ROWS - 1)), "target LotArea has entries that are missing"),
        (fake_table().assign(PoolArea=[np.inf] + [1.0] * (N_ROWS - 1)), "column PoolArea holds infinite numbers"),
        (pd.concat([fake_table()] * 2), "has rows twice, by their Id"),
        (fake_table().to_csv(index=False, na_rep="NA").encode()[:-3], f"ends within a line, after {N_ROWS} rows"),
        (fake_table().assign(MSZoning="RL"), "every row has MSZoning = RL"),
        (fake_table().assign(MSZoning="RM"), "no row has MSZoning = RL"),
        (b"", r"not a readable CSV file \(No columns to parse"),
    ],
)
def test_wrong_tables_are_refused(root: Path, table: pd.DataFrame | bytes, message: str) -> None:
    path = root / "house_prices" / "train.csv"
    path.write_bytes(table if isinstance(table, bytes) else table.to_csv(index=False, na_rep="NA").encode())
    with pytest.raises(DataError, match=message) as caught:
        Housing(root, "harmful").load()
    assert str(path) in str(caught.value)


def test_options_are_checked() -> None:
    with pytest.raises(DataError, match="source is 'kaggle', but has to be one of auto, openml"):
        Housing("data", "harmful", source="kaggle")
    with pytest.raises(DataError, match="rows=1, but at least 2"):
        Housing("data", "harmful", rows=1)


def test_openml_copy_gives_the_same_numbers(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # OpenML's parser keeps "None" as text, gives whole numbers as floats, and categories as such.
    frame = fake_table()
    for name in COLUMNS:
        frame[name] = frame[name].astype("category") if name in TEXT_COLUMNS else frame[name].astype(float)
    fetch = Mock(return_value=SimpleNamespace(frame=frame))
    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    for role in ("pretrain", "harmful"):
        online, local = Housing(root, role, source="openml").load().fit, Housing(root, role).load().fit
        assert torch.equal(online.x, local.x)
        assert torch.equal(online.y, local.y)
    assert (fetch.call_args.kwargs["data_id"], fetch.call_args.kwargs["data_home"]) == (42165, str(tmp_path))


def test_openml_offline_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = Mock(side_effect=OSError("Name or service not known"))
    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    with pytest.raises(MissingDataError, match=r"could not be downloaded from OpenML.*not known.*harmful\.source=auto"):
        Housing(tmp_path, "harmful", source="openml").load()
