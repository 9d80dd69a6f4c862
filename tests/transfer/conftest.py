"""The command line, through which interrupted copies are tested too."""

from tests.cli.conftest import gpustore_command  # noqa: F401
