"""The experiments of this repository. Whatever one imports first, idle threads are told how to wait before it."""

import immunize  # noqa: F401
