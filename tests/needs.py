"""What some tests need: where it is missing they are left out, unless they must run."""

from __future__ import annotations

import os

import pytest


def need(is_there: bool, what: str) -> None:  # noqa: FBT001 - the condition itself
    """Skip a test, or fail it where RUNNER_MUST_RUN forbids that, unless the condition holds."""
    if is_there:
        return
    if "privileged" in os.environ.get("RUNNER_MUST_RUN", "").split(","):
        pytest.fail(f"needs {what}, and RUNNER_MUST_RUN forbids to skip it")
    pytest.skip(f"needs {what}")
