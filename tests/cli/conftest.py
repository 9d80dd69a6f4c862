"""Running the command line inside the test's process."""

import pytest

from gpustore.cli.main import main


@pytest.fixture
def gpustore_command(capsys):
    """Call with arguments; gives exit code, standard output and standard error."""

    def call(*arguments):
        capsys.readouterr()
        try:
            code = main([str(a) for a in arguments])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
