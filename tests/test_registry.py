"""Modules that are imported by name, by several threads at once."""

import subprocess
import sys

import pytest

from gpustore import registry

_RACE = """
import sys, threading, time
import gpustore

begun, trying, failed = threading.Event(), threading.Event(), []

class Finder:
    # Holds up the import of the package until the other thread tries to import a module of it.
    def find_spec(self, name, path=None, target=None):
        if name == "gpustore.schema" and not begun.is_set():
            begun.set()
            trying.wait()
            for _ in range(1000):
                time.sleep(0)

def use(name):
    try:
        getattr(gpustore, name)
    except BaseException as error:
        failed.append(error)

def use_module():
    begun.wait()
    trying.set()
    use("ChunkLayout")

sys.setswitchinterval(1e-6)
sys.meta_path.insert(0, Finder())
threads = [threading.Thread(target=use, args=("Schema",)), threading.Thread(target=use_module)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert failed == [], failed
"""


@pytest.mark.matrix("costly")
def test_a_package_and_its_module_are_imported_by_two_threads():
    """Python's own locks, one a module, end in an error."""
    subprocess.run([sys.executable, "-c", _RACE], check=True, timeout=100)


@pytest.mark.parametrize("library", ["dask", "jax", "ray", "torch", "xarray", "zarr"])
def test_a_guest_whose_library_is_missing_names_the_command_that_installs_it(monkeypatch, library):
    for name in [one for one in sys.modules if one.startswith(f"gpustore.interop.{library}")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [one for one in sys.modules if one.startswith(f"{library}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'gpustore\[{library}\]'"):
        registry.guest.__wrapped__(library)  # What was imported before is remembered.
