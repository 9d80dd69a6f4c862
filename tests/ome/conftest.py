"""The command line, for tests that show images."""

from tests.cli.conftest import gpustore_command  # noqa: F401
