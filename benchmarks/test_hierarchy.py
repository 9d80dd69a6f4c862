"""Shape, type and chunks of every member of a hierarchy of 10 000 arrays."""

import json

import pytest

COUNT = 10_000


@pytest.fixture(scope="session")
def hierarchy(tmp_path_factory):
    """Give the folder of a hierarchy, written by zarr-python but for the copying."""
    zarr = pytest.importorskip("zarr")
    folder = tmp_path_factory.mktemp("hierarchy")

    def path_of(version, *, consolidated):
        path = folder / f"zarr{version}-{consolidated}"
        if path.exists():
            return path
        root = zarr.open_group(str(path), mode="w", zarr_format=version)
        options = {"shape": (1, 8, 8), "chunks": (1, 4, 4), "dtype": "f4", "attributes": {"i": 0}}
        root.create_array("0", **options)
        documents = {file.name: json.loads(file.read_bytes()) for file in (path / "0").iterdir()}
        for i in range(1, COUNT):
            (path / str(i)).mkdir()
            for name, document in documents.items():
                if "shape" in document:
                    document["shape"] = [i + 1, 8, 8]
                (path / str(i) / name).write_text(json.dumps(document, indent=2))
        if consolidated:
            zarr.consolidate_metadata(str(path))
        return path

    return path_of


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
@pytest.mark.parametrize("consolidated", [True, False], ids=["consolidated", "listed"])
@pytest.mark.parametrize("version", [2, 3], ids=["zarr2", "zarr3"])
def test_members(measure, peer, version, consolidated, hierarchy):
    """Open the root and look at all members."""
    if not hasattr(peer, "members"):
        pytest.skip("has no groups")
    path = hierarchy(version, consolidated=consolidated)
    members = measure(lambda: peer.members(path), nbytes=0)
    expected = {str(i): ((i + 1, 8, 8), "float32", (1, 4, 4)) for i in range(COUNT)}
    assert members == expected
