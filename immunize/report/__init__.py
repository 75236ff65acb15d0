"""Tables and figures from records. Imports no other room, and no torch."""

from immunize.report.figures import norm_ratio_figure
from immunize.report.one_run import result_rows, show_record

__all__ = ["norm_ratio_figure", "result_rows", "show_record"]
