"""Raw files to (x, y); knows no model. One file per data set, `pair` for D_P and D_H side by side."""

from immunize.data.splits import ROLES, Part, Parts, Role, SourceBase, Splits

__all__ = ["ROLES", "Part", "Parts", "Role", "SourceBase", "Splits"]
