"""The table of Kaggle's House Prices: where it is found, how it is read, and what is checked (C.2).

One reader serves the local ``<root>/house_prices/train.csv`` and OpenML's copy (data set 42165): the latter is written
out as CSV text and read back, so that both end with the same dtypes and the same missing values. In particular pandas
takes the strings "NA" and "None" for missing; the second occurs in MasVnrType only, and the known condition numbers of
the two data sets (254.13 and 209.04) depend on it.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from immunize.errors import DataError, MissingDataError

__all__ = ["COLUMNS", "TARGETS", "ZONE", "local_csv", "read_local", "read_openml", "require_local"]

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


def local_csv(root: str | Path) -> Path:
    """Where the local file has to lie.

    Args:
        root: the data folder.

    Returns:
        ``<root>/house_prices/train.csv``.
    """
    return Path(root).expanduser() / "house_prices" / "train.csv"


def require_local(root: str | Path) -> Path:
    """Find the local file.

    Args:
        root: the data folder.

    Raises:
        MissingDataError: if the file is not there.
    """
    path = local_csv(root)
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
        table = pd.read_csv(path)
    except pd.errors.EmptyDataError as error:
        raise DataError(f"{path} is empty; get train.csv from {KAGGLE_URL}") from error
    except (OSError, ValueError) as error:  # ParserError and UnicodeDecodeError are ValueErrors
        raise DataError(f"{path} is not a readable CSV file ({error}); get train.csv from {KAGGLE_URL}") from error
    if not isinstance(table.index, pd.RangeIndex):  # pandas takes the surplus for the names of rows
        raise DataError(f"{path} has rows with more fields than the header names; get train.csv from {KAGGLE_URL}")
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
        raise DataError(f"{where} lacks {len(absent)} of 81 columns ({_first(absent)}); {advice}")
    if unknown:
        raise DataError(f"{where} has {len(unknown)} columns too many ({_first(unknown)}); {advice}")
    if table.empty:
        raise DataError(f"{where} has a header but no rows; {advice}")
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


def _first(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
