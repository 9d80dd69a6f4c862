"""The command line, through which copies are tested too."""

from tests.cli.conftest import gpustore_command  # noqa: F401
