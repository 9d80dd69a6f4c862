"""Detection by bytes and by names, with TensorStore as oracle for both."""

import io
import re
import zipfile

import pytest
import tensorstore as ts

import gpustore
from gpustore.drivers._detection import detect
from gpustore.errors import MismatchError, StoreIOError
from gpustore.kvstores.kvstore import KvStore
from tests.kvstores.faulty import Fault, FaultyKvStore, Rule
from tests.matrix import each


def zipped(comment=b""):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/b", "hello")
        archive.comment = comment
    return file.getvalue()


PNG = b"\x89PNG\r\n\x1a\n"
REST = bytes(60)
WEBP = b"RIFF$\0\0\0WEBPVP8 \x18\0\0\x000\x01\0\x9d\x01*\x04\0\x04\0" + REST

FILES = {
    "empty": b"",
    "byte": b"x",
    "json": b"{}",
    "gzip": b"\x1f\x8b" + REST,
    "hdf5": b"\x89HDF\r\n\x1a\n" + REST,
    "long": bytes(100_000),
    "png": PNG + REST,
    "png alone": PNG,
    "png cut": PNG[:4],
    "jpeg": b"\xff\xd8\xff\xe0" + REST,
    "jpeg alone": b"\xff\xd8\xff",
    "jpeg cut": b"\xff\xd8",
    "no jpeg": b"\xff\xd8\0" + REST,
    "bmp": b"BM" + REST,
    "tiff little": b"II*\0" + REST,
    "tiff big": b"MM\0*" + REST,
    "bigtiff little": b"II+\0" + REST,
    "bigtiff big": b"MM\0+" + REST,
    "no tiff": b"II\0*" + REST,
    "webp": WEBP,
    "wav": b"RIFF$\0\0\0WAVE" + REST,
    "avif": b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf" + REST,
    "avif by another brand": b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf" + REST,
    "zip": zipped(),
    "zip with comment": zipped(b"hello"),
    "zip behind an image": PNG + zipped(),
    "empty zip": b"PK\5\6" + bytes(18),
    "zip with bytes behind it": zipped() + b"xx",
    "zip with a comment cut": zipped(b"hello")[:-2],
    "no end record": b"PK\3\4" + REST,
}


def theirs_for(values):
    """Names of the formats TensorStore sees at ``f``, read off its error."""
    context = ts.Context()
    store = ts.KvStore.open("memory://", context=context).result()
    for key, value in values.items():
        store[key] = value
    try:
        return [ts.open("memory://f", context=context).result().spec().to_json()["driver"]]
    except ValueError as error:
        message = str(error).partition(" [tensorstore_spec")[0]
    several = re.search(r"Multiple possible formats detected for .*: \{(.*)\}", message)
    if several:
        return several[1].split(", ")
    inner = re.search('Error opening "auto" driver: Error opening "(.*?)" driver', message)
    if inner:
        return [{"zarr": "zarr2"}.get(inner[1], inner[1].replace("_", "-"))]
    if 'Failed to detect format for "" in "f"' in message:
        return ["zip"]
    if "in OCDBT database" in message:
        return ["ocdbt"]
    assert 'Failed to detect format for "f"' in message
    return []


def ours_for(values):
    store = KvStore.open("memory://").result()
    for key, value in values.items():
        store[key] = value
    return [format_.name for format_ in detect(store / "f").formats]


@each("name", FILES)
def test_files_are_told_as_by_tensorstore(name):
    assert ours_for({"f": FILES[name]}) == theirs_for({"f": FILES[name]})


@pytest.mark.parametrize("comment", [b"PK\5\6", b"PK\5\6" + bytes(18), b"c" * 65_535])
def test_no_comment_hides_a_zip_file(comment):
    # TensorStore takes the first for an end record, and reads too little to see the others.
    assert ours_for({"f": zipped(comment)}) == ["zip"]
    assert ours_for({"f": bytes(100_000) + zipped(comment)}) == ["zip"]


NAMES = ("attributes.json", "info", ".zarray", "zarr.json", "manifest.ocdbt", ".zgroup", ".zattrs")


@each(
    "names",
    [
        *[(name,) for name in NAMES],
        *[("zarr.json", name) for name in NAMES],
        *(NAMES, (".zgroup", "info"), (".zgroup", ".zattrs"), ("zarr.json/c",)),
    ],
)
def test_directories_are_told_as_by_tensorstore(names):
    values = {f"f/{name}": b"{}" for name in names}
    assert ours_for(values) == theirs_for(values)
    assert ours_for({**values, "f": b"no format"}) == theirs_for({**values, "f": b"no format"})
    assert ours_for({**values, "f": PNG}) == theirs_for({**values, "f": PNG}) == ["png"]


class _Counting(FaultyKvStore):
    """A store that remembers how many keys each request had."""

    def __init__(self, base, rules=()):
        super().__init__(base, rules)
        self.requests = []

    def read_many(self, request):
        self.requests.append(len(request.keys))
        return super().read_many(request)


def counting(values, rules=()):
    store = KvStore.open("memory://").result()
    for key, value in values.items():
        store[key] = value
    return _Counting(store.driver, rules)


def test_requests_are_few():
    driver = counting({"long": PNG + bytes(100_000), "short": PNG, "d/zarr.json": b"{}"})
    for path, requests in (("long", [2]), ("short", [2, 1]), ("d", [2, 5]), ("d/", [5]), ("", [5])):
        driver.requests.clear()
        detect(KvStore(driver, path))
        assert driver.requests == requests, path


def test_a_page_about_a_directory_hides_nothing():
    """Web servers answer for directories too; other stores have a file of no format there."""
    driver = counting({"f": b"<!DOCTYPE html>", "f/zarr.json": b"{}", "g": b"<!DOCTYPE html>"})
    assert detect(KvStore(driver, "f")).formats == ()
    driver.can_list = False
    assert [format_.name for format_ in detect(KvStore(driver, "f")).formats] == ["zarr3"]
    found = detect(KvStore(driver, "g"))
    assert found.formats == ()
    assert "it begins with 3c 21" in found.looked_for


def test_metadata_are_read_with_the_names():
    values = {"d/zarr.json": b"{}", "e/.zarray": b"long", "f/.zarray": b"{}", "f/zarr.json": b"{}"}
    driver = counting({**values, "g/info": b"{}"})
    found = {path: detect(KvStore(driver, path + "/"), 3) for path in "defg"}
    assert [[format_.name for format_ in one.formats] for one in found.values()] == [
        ["zarr3"],
        ["zarr2"],
        ["zarr2", "zarr3"],
        ["neuroglancer-precomputed"],
    ]
    assert driver.requests == [5] * 4
    read = [None if one.metadata is None else one.metadata.value for one in found.values()]
    # What is too long is for those to judge who open it.
    assert read == [b"{}", None, None, None]
    assert detect(KvStore(driver, "d/")).metadata is None


@pytest.mark.parametrize("key", ["f", "f/zarr.json", "f/info"])
def test_unreadable_files_are_no_missing_format(key):
    driver = counting({"f/zarr.json": b"{}"}, [Rule(Fault.ERROR, key=key)])
    with pytest.raises(StoreIOError):
        detect(KvStore(driver, "f"))
    assert [format_.name for format_ in detect(KvStore(driver, "f")).formats] == ["zarr3"]


def test_a_directory_with_the_name_of_a_document_is_none(tmp_path):
    for name in ("info", "attributes.json", "zarr.json"):
        (tmp_path / "f" / name).mkdir(parents=True)
    (tmp_path / "f" / ".zarray").write_text("{}")
    store = KvStore.open(f"file://{tmp_path}/f").result()
    assert [format_.name for format_ in detect(store).formats] == ["zarr2"]


def test_both_kinds_of_groups_are_named_in_the_error(tmp_path):
    for zarr_format in (2, 3):
        path = f"{tmp_path}/{zarr_format}"
        gpustore.open_group(path, create=True, zarr_format=zarr_format).result()
        group = gpustore.open_group(path).result()
        for name in ("raw", "labels"):
            group.create_group(name).result()
        with pytest.raises(MismatchError) as caught:
            gpustore.open(path).result()
        assert str(caught.value) == (
            f'FAILED_PRECONDITION: Error opening "auto" driver: local file "{path}" is a Zarr '
            f"v{zarr_format} group, not an array: open the group with gpustore.open_group, or a "
            'member of it: "labels", "raw"'
        )
        with pytest.raises(ValueError, match=r"gpustore\.open_group") as caught:
            gpustore.open(f"{path}|zarr{zarr_format}:").result()


def test_a_part_of_an_array_is_told_from_the_array(tmp_path):
    (tmp_path / "zarr.json").write_bytes(b"{}")
    with pytest.raises(MismatchError, match="if it is a part of a Zarr v3 array, open its direct"):
        gpustore.open(tmp_path / "zarr.json").result()


def test_a_file_of_no_format_is_described(tmp_path):
    (tmp_path / "f").write_bytes(b"{}")
    with pytest.raises(MismatchError) as caught:
        gpustore.open(tmp_path / "f").result()
    assert str(caught.value) == (
        'FAILED_PRECONDITION: Error opening "auto" driver: Failed to detect format for local file '
        f'"{tmp_path}/f": it is a file, but none of avif, bmp, jpeg, png, tiff, webp, zip: it '
        "begins with 7b 7d"
    )
