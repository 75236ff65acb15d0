"""`python -m immunize.report html`: one self-contained page of a run or a sweep, from records alone."""

from immunize.report.html.run import write_run_page
from immunize.report.html.sweep import write_sweep_page

__all__ = ["write_run_page", "write_sweep_page"]
