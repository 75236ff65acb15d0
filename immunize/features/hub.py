"""Pretrained weights from where timm keeps them, with a limit on how long a missing network is waited for.

Left alone, the hub's client retries for more than a minute and then speaks of its cache. Here files that lie in the
cache are used without asking anybody, and the hub is asked once, briefly, before its client may start.
"""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from immunize.errors import UserError

__all__ = ["WAIT", "pretrained_overlay"]

WAIT = 4.0
"""Seconds to wait for an answer of the hub, unless HF_HUB_ETAG_TIMEOUT says for how long its client waits for one."""

HUB_FILES = ("model.safetensors", "pytorch_model.bin")
"""What timm looks for in a repository of the hub, in this order."""


def pretrained_overlay(architecture: str, config: Any) -> dict[str, Any]:
    """What to change in timm's pretrained configuration so that loading asks no network where it need not.

    Args:
        architecture: timm's name, for messages.
        config: timm's pretrained configuration of it.

    Returns:
        {"file": path} where the weights are in the cache; nothing where the hub answers.

    Raises:
        UserError: timm has no weights, or they are not here and the hub does not answer.
    """
    hub, url = getattr(config, "hf_hub_id", None), getattr(config, "url", None)
    if not hub and not url:
        raise UserError(
            f"timm has no pretrained weights for {architecture}; give your own with model.checkpoint=<file>, choose a "
            f"model that has some, or start from random ones with model.pretrained=false"
        )
    if cached := _cached(hub, getattr(config, "hf_hub_filename", None), url):
        return {"file": str(cached)}
    address = _hub_address() if hub else str(url)
    if not _answers(address, wait := _wait()):
        raise UserError(
            f"the pretrained weights of {architecture} are not in the cache and {address} does not answer within "
            f"{wait:g} s (HF_HUB_ETAG_TIMEOUT=<seconds> waits longer). Give weights that you have with "
            f"model.checkpoint=<safetensors file or state dict>, or start "
            f"from random ones with model.pretrained=false (python -m immunize.pretrain trains them)"
        )
    return {}


def _cached(hub: str | None, filename: str | None, url: str | None) -> Path | None:
    if hub:
        from huggingface_hub import try_to_load_from_cache

        repository, _, revision = hub.partition("@")
        for name in (filename,) if filename else HUB_FILES:
            found = try_to_load_from_cache(repository, name, revision=revision or None)
            if isinstance(found, str):
                return Path(found)
        return None
    from torch.hub import get_dir

    path = Path(get_dir()) / "checkpoints" / Path(str(url)).name
    return path if path.is_file() else None


def _hub_address() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def _wait() -> float:
    from huggingface_hub import constants

    return float(constants.HF_HUB_ETAG_TIMEOUT) if "HF_HUB_ETAG_TIMEOUT" in os.environ else WAIT


def _answers(address: str, wait: float) -> bool:
    """Whether anybody answers there, whatever the answer; through the user's proxy if there is one.

    In a thread, since nothing limits how long a name may take to be looked up.
    """
    if _told_offline():
        return False
    answered = threading.Event()

    def ask() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=wait):
                answered.set()
        except urllib.error.HTTPError:
            answered.set()
        except (OSError, ValueError):
            pass

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(wait)
    return answered.is_set()


def _told_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)
