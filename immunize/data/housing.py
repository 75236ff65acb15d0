"""House Prices: a pair of regressions from Kaggle's table (Table 1, Fig. 1; §5.1 "Linear regression task", C.2).

Rows with MSZoning = RL form D_H (1,151 rows, target SalePrice), the others D_P (309 rows, target LotArea). Per
data set:

1. missing values become 0;
2. columns that are not numbers are label-encoded as strings, so a missing value is the category "0";
3. features and target become (value - mean) / standard deviation (with N - 1; a constant column becomes 0).

Features are all columns but the two targets, 79 as the paper says; so Id and MSZoning are among them (the latter is
constant in D_H), as in the released code. That code also takes only the first 200 rows of each data set (``rows=200``);
the default is all of them.

The paper fits on every row, so there is no held-out part and the data set is cross-fitted (`Housing.cross_fit`).

One reader serves the local ``<root>/house_prices/train.csv`` and OpenML's copy (data set 42165): the latter is written
out as CSV text and read back, so that both end with the same dtypes and the same missing values. In particular pandas
takes the strings "NA" and "None" for missing; the second occurs in MasVnrType only, and the known condition numbers of
the two data sets (254.13 and 209.04) depend on it.

Shapes: N rows, D = 79 features.
"""

from __future__ import annotations

import io
import warnings
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from immunize.data.splits import ROLES, Array, Part, SourceBase, Splits, Standardizer, random_generator, to_part
from immunize.errors import DataError, MissingDataError, some

OPENML_ID = 42165
"""OpenML's "house_prices", version 1: the same 1,460 rows and 81 columns."""

KAGGLE_URL = "https://www.kaggle.com/c/house-prices-advanced-regression-techniques/data"
ZONE = "MSZoning"
TARGETS = {"pretrain": "LotArea", "harmful": "SalePrice"}
"""The two regression targets (§5.1); neither is a feature of either data set."""

# fmt: off
COLUMNS = (
    "Id", "MSSubClass", "MSZoning", "LotFrontage", "LotArea", "Street", "Alley", "LotShape", "LandContour",
    "Utilities", "LotConfig", "LandSlope", "Neighborhood", "Condition1", "Condition2", "BldgType", "HouseStyle",
    "OverallQual", "OverallCond", "YearBuilt", "YearRemodAdd", "RoofStyle", "RoofMatl", "Exterior1st", "Exterior2nd",
    "MasVnrType", "MasVnrArea", "ExterQual", "ExterCond", "Foundation", "BsmtQual", "BsmtCond", "BsmtExposure",
    "BsmtFinType1", "BsmtFinSF1", "BsmtFinType2", "BsmtFinSF2", "BsmtUnfSF", "TotalBsmtSF", "Heating", "HeatingQC",
    "CentralAir", "Electrical", "1stFlrSF", "2ndFlrSF", "LowQualFinSF", "GrLivArea", "BsmtFullBath", "BsmtHalfBath",
    "FullBath", "HalfBath", "BedroomAbvGr", "KitchenAbvGr", "KitchenQual", "TotRmsAbvGrd", "Functional", "Fireplaces",
    "FireplaceQu", "GarageType", "GarageYrBlt", "GarageFinish", "GarageCars", "GarageArea", "GarageQual",
    "GarageCond", "PavedDrive", "WoodDeckSF", "OpenPorchSF", "EnclosedPorch", "3SsnPorch", "ScreenPorch", "PoolArea",
    "PoolQC", "Fence", "MiscFeature", "MiscVal", "MoSold", "YrSold", "SaleType", "SaleCondition", "SalePrice",
)
# fmt: on
"""The header of train.csv, 81 names."""


def require_local(root: str | Path) -> Path:
    """Find the local file, ``<root>/house_prices/train.csv``.

    Args:
        root: the data folder.

    Raises:
        MissingDataError: if the file is not there.
    """
    path = Path(root).expanduser() / "house_prices" / "train.csv"
    if not path.is_file():
        raise MissingDataError(
            f"House Prices was not found: looked for {path}. Get train.csv from {KAGGLE_URL} (needs an account) and "
            f"name the folder that holds house_prices/train.csv with data_root=<folder> or the environment variable "
            f"IMMUNIZE_DATA, or download OpenML's copy with harmful.source=openml."
        )
    return path


def read_local(root: str | Path) -> pd.DataFrame:
    """Read the local file.

    Args:
        root: the data folder.

    Returns:
        a checked table of the 81 `COLUMNS`, in their order.

    Raises:
        MissingDataError: if the file is not there.
        DataError: if it is not the table of House Prices.
    """
    path = require_local(root)
    try:
        content = path.read_bytes()
        table = pd.read_csv(io.BytesIO(content))
    except (OSError, ValueError) as error:  # ParserError, EmptyDataError and UnicodeDecodeError are ValueErrors
        raise DataError(f"{path} is not a readable CSV file ({error}); get train.csv from {KAGGLE_URL}") from error
    if not isinstance(table.index, pd.RangeIndex):  # pandas takes the surplus for the names of rows
        raise DataError(f"{path} has rows with more fields than the header names; get train.csv from {KAGGLE_URL}")
    if not content.endswith(b"\n"):
        raise DataError(f"{path} ends within a line, after {len(table)} rows; get train.csv from {KAGGLE_URL}")
    return check_table(table, str(path))


def read_openml(root: str | Path) -> pd.DataFrame:
    """Read OpenML's copy, downloading it on the first call.

    Args:
        root: the data folder; scikit-learn keeps its download in ``<root>/openml``.

    Returns:
        a checked table of the 81 `COLUMNS`, in their order.

    Raises:
        MissingDataError: if it cannot be downloaded.
        DataError: if it is not the table of House Prices.
    """
    from sklearn.datasets import fetch_openml  # a second of import time, needed for this alone

    try:
        with warnings.catch_warnings():  # one for every retry; the error below says it once
            warnings.filterwarnings("ignore", message="A network error occurred")
            home = str(Path(root).expanduser())
            frame = fetch_openml(data_id=OPENML_ID, as_frame=True, parser="pandas", data_home=home)
    except (OSError, ValueError) as error:  # URLError is an OSError; a broken answer gives ValueError
        raise MissingDataError(
            f"House Prices could not be downloaded from OpenML (data set {OPENML_ID}): {error}. Offline, get train.csv "
            f"from {KAGGLE_URL}, put it into house_prices/ under the folder that data_root=<folder> or IMMUNIZE_DATA "
            f"names, and use harmful.source=auto."
        ) from error
    text = frame.frame.to_csv(index=False)
    return check_table(pd.read_csv(io.StringIO(text)), f"OpenML's data set {OPENML_ID}")


def check_table(table: pd.DataFrame, where: str) -> pd.DataFrame:
    """Check that a table is the one of House Prices.

    Args:
        table: what was read.
        where: file or origin, for the messages.

    Returns:
        the table with its columns in the order of `COLUMNS`.

    Raises:
        DataError: for missing or unknown columns, no rows, targets that are not numbers, infinite numbers, or rows of
            one zone only.
    """
    advice = f"the table has to be train.csv of {KAGGLE_URL}"
    absent = [name for name in COLUMNS if name not in table.columns]
    unknown = [str(name) for name in table.columns if name not in COLUMNS]
    if absent:
        raise DataError(f"{where} lacks {len(absent)} of 81 columns ({some(absent, 5)}); {advice}")
    if unknown:
        raise DataError(f"{where} has {len(unknown)} columns too many ({some(unknown, 5)}); {advice}")
    if table.empty:
        raise DataError(f"{where} has a header but no rows; {advice}")
    if table["Id"].duplicated().any():
        raise DataError(f"{where} has rows twice, by their Id; {advice}")
    for target in TARGETS.values():
        if not pd.api.types.is_numeric_dtype(table[target]) or table[target].isna().any():
            raise DataError(f"{where}: the target {target} has entries that are missing or not numbers; {advice}")
    for name in table.columns:
        if pd.api.types.is_numeric_dtype(table[name]) and np.isinf(table[name].to_numpy(dtype=float)).any():
            raise DataError(f"{where}: column {name} holds infinite numbers; {advice}")
    in_zone = int((table[ZONE] == "RL").sum())
    if in_zone in (0, len(table)):
        what = "no row" if in_zone == 0 else "every row"
        raise DataError(f"{where}: {what} has {ZONE} = RL, so one of the two data sets would be empty; {advice}")
    return table[list(COLUMNS)]


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
        own = {
            "zone": f"{ZONE} {'==' if self.role == 'harmful' else '!='} RL",
            "target": TARGETS[self.role],
            "rows": "all" if self.rows is None else f"first {self.rows}",
            "encoding": "NaN to 0, LabelEncoder on strings, standardized with ddof=1, per data set",
            "from": "house_prices/train.csv" if self.source == "auto" else f"OpenML {OPENML_ID}",
        }
        return self.facts(own)

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
