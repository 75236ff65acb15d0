"""House Prices: a regression pair from Kaggle's table (Table 1, Fig. 1; §5.1 "Linear regression task", C.2).

Rows with MSZoning = RL form D_H (1,151 rows, target SalePrice), the others D_P (309 rows, target LotArea). Per
data set:

1. missing values become 0;
2. columns that are not numbers are label-encoded as strings, so a missing value is the category "0";
3. features and target become (value - mean) / standard deviation (with N - 1; a constant column becomes 0).

Features are all columns but the two targets, 79 as the paper says; so Id and MSZoning are among them (the latter is
constant in D_H), as in the released code. That code also takes only the first 200 rows of each data set (``rows=200``);
the default is all of them.

The paper fits on every row, so there is no held-out part and the data set is cross-fitted (`Housing.cross_fit`).

Shapes: N rows, D = 79 features.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from immunize.data.housing_table import OPENML_ID, TARGETS, ZONE, read_local, read_openml, require_local
from immunize.data.scaling import Standardizer
from immunize.data.splits import ROLES, Part, SourceBase, Splits, random_generator, to_part
from immunize.errors import DataError

__all__ = ["Housing", "encode"]

Array = np.ndarray[Any, np.dtype[np.float64]]
SOURCES = ("auto", "openml")


class Housing(SourceBase):
    """The rows of one zone group of House Prices.

    Args:
        root: the data folder, which holds ``house_prices/train.csv``.
        role: "pretrain" (MSZoning other than RL, target LotArea) or "harmful" (RL, target SalePrice).
        rows: take the first so many rows of the role; None for all.
        source: "auto" for the local file, "openml" to download OpenML's copy.

    Raises:
        DataError: for an unknown role or source, or fewer than 2 rows asked for.
    """

    name = "housing"
    task = "regression"
    held_out_protocol = "cross_fit"

    def __init__(self, root: str | Path, role: str, rows: int | None = None, source: str = "auto") -> None:
        super().__init__(role)
        if source not in SOURCES:
            raise DataError(f"housing: source is {source!r}, but has to be one of {', '.join(SOURCES)}")
        if rows is not None and rows < 2:
            raise DataError(f"housing: rows={rows}, but at least 2 rows are needed (null takes all of them)")
        self.root = Path(root)
        self.rows = rows
        self.source = source

    def require(self) -> None:
        """Find the local file; OpenML's copy is fetched when it is read.

        Raises:
            MissingDataError: if the file is not there.
        """
        if self.source == "auto":
            require_local(self.root)

    def load(self) -> Splits:
        """Read, encode and standardize this role's rows.

        Returns:
            all rows as `fit`, (N, 79); no held-out part.

        Raises:
            MissingDataError: if the table is not there or cannot be downloaded.
            DataError: if it is not the table of House Prices, or has fewer than 2 rows of this role.
        """
        values = self._encoded
        return Splits(fit=_part(Standardizer.of(values), values), held_out=None)

    def cross_fit(self, seed: int) -> Splits:
        """A random half of this role's rows, and the other half prepared as if it came later.

        Means and standard deviations are those of the first half alone. The category vocabulary is the role's full
        table: the codes only name categories, and a later row with an unseen one would have no code at all. A column
        that is constant in the first half is centred with its value there and not scaled.

        Args:
            seed: decides which rows are in which half.

        Returns:
            the half that is fitted on (one row more if N is odd) and the half held out.

        Raises:
            MissingDataError: as `load`.
            DataError: as `load`, or fewer than 4 rows.
        """
        values = self._encoded
        if len(values) < 4:
            raise DataError(f"housing ({self.role}): {len(values)} rows are too few to cross-fit; 4 are needed")
        order = random_generator(seed, ROLES.index(self.role)).permutation(len(values))
        half = (len(values) + 1) // 2
        fit, held_out = values[np.sort(order[:half])], values[np.sort(order[half:])]
        scale = Standardizer.of(fit)
        return Splits(fit=_part(scale, fit), held_out=_part(scale, held_out))

    def describe(self) -> dict[str, object]:
        """Short facts for the record."""
        return {
            "name": self.name,
            "role": self.role,
            "task": self.task,
            "zone": f"{ZONE} {'==' if self.role == 'harmful' else '!='} RL",
            "target": TARGETS[self.role],
            "rows": "all" if self.rows is None else f"first {self.rows}",
            "encoding": "NaN to 0, LabelEncoder on strings, standardized with ddof=1, per data set",
            "from": "house_prices/train.csv" if self.source == "auto" else f"OpenML {OPENML_ID}",
            "held_out_protocol": self.held_out_protocol,
        }

    @cached_property
    def _encoded(self) -> Array:
        """This role's rows as numbers, (N, 80): 79 features, then the target."""
        table = read_local(self.root) if self.source == "auto" else read_openml(self.root)
        in_role = (table[ZONE] == "RL") == (self.role == "harmful")
        mine = table[in_role] if self.rows is None else table[in_role].head(self.rows)
        if len(mine) < 2:
            raise DataError(f"housing ({self.role}): the table has {len(mine)} row of this zone; 2 are needed")
        features = encode(mine.drop(columns=list(TARGETS.values())))
        return np.column_stack([features, mine[TARGETS[self.role]].to_numpy(dtype=np.float64)])


def encode(table: pd.DataFrame) -> Array:
    """Numbers for every column: missing values become 0, what is not a number is label-encoded as strings.

    Args:
        table: N rows, D columns of any dtype.

    Returns:
        (N, D) float64; the code of a category is its place among this table's categories in the order of strings.
    """
    columns = []
    for name in table.columns:
        column = table[name]
        if pd.api.types.is_numeric_dtype(column):
            columns.append(column.fillna(0).to_numpy(dtype=np.float64))
        else:  # an object array first: pandas' string columns refuse the number 0
            texts = [str(value) for value in column.astype(object).where(column.notna(), 0)]
            columns.append(pd.factorize(np.array(texts, dtype=object), sort=True)[0].astype(np.float64))
    return np.column_stack(columns)


def _part(scale: Standardizer, values: Array) -> Part:
    standardized = scale.apply(values)
    return to_part(standardized[:, :-1], standardized[:, -1])
