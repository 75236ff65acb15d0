"""One run after another in this process: hydra/launcher=serial."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from immunize.sweeping.launching import Job, SweepLauncher
from immunize.sweeping.outcome import Outcome

__all__ = ["SerialLauncher"]


class SerialLauncher(SweepLauncher):
    """Takes no settings."""

    def outcomes(self, jobs: Iterator[Job]) -> Iterable[tuple[Job, Outcome]]:
        """One after another."""
        for job in jobs:
            yield job, self.jobs.run(job.number, job.overrides)
