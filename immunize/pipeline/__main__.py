"""`python -m immunize.pipeline <file>`: one of several processes of a run (:mod:`immunize.processes`)."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
import time
from pathlib import Path

from immunize.errors import UserError
from immunize.importing import start_quickly
from immunize.processes import POLL, end_with_parent, is_first


def main(path: Path) -> int:
    """Do what the file says; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # in the middle of an import there is nothing to say
    end_with_parent()
    start_quickly()
    if not is_first():
        logging.disable(logging.ERROR)  # what all processes log, one says
    from omegaconf import OmegaConf

    from immunize.instantiate import NOT_ARGUMENTS, build
    from immunize.pipeline.assemble import assemble
    from immunize.pipeline.experiment import new_record, run

    clock = time.perf_counter()
    try:
        spec = json.loads(path.read_text(encoding="utf-8"))
        settings = OmegaConf.create(spec["config"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        record = new_record(spec["config"], build(settings.method, leave_out=NOT_ARGUMENTS)) | {
            "command": spec["command"]
        }
        run(assemble(settings), record, path.parent, clock, quiet=spec["quiet"])
    except Exception as error:
        time.sleep(2 * POLL)  # where another was killed, this one is as well before it tells of that
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # by the first that fails; the others fail of the same, or of its end
            if not isinstance(error, UserError | OSError):
                raise
            print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 128 + signal.SIGINT if record["status"] == "interrupted" else 0


def leave_group() -> None:
    """Leave the others, if it has come to a group of processes: what fails before that has said why."""
    import torch

    with contextlib.suppress(RuntimeError, ValueError):
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    leave_group()
    sys.exit(code)
