"""Plates, wells and collections."""

import numpy as np
import pytest

import gpustore
from gpustore import ome
from tests.kvstores.http.http_server import HttpServer
from tests.ome.files import VALUES, stated, write_group, write_image

PLATE = {
    "name": "screen",
    "rows": [{"name": "A"}, {"name": "B"}],
    "columns": [{"name": "01"}, {"name": "03"}],
    "acquisitions": [{"id": 1, "name": "first", "starttime": 5}],
    "wells": [{"path": "A/01", "rowIndex": 0, "columnIndex": 0},
              {"path": "B/03", "rowIndex": 1, "columnIndex": 1}],
}  # fmt: skip
WELL = {"images": [{"path": "0", "acquisition": 1}, {"path": "1"}]}


@pytest.fixture
def context():
    return gpustore.Context()


@pytest.mark.parametrize("version", ["0.4", "0.5", "0.6"])
def test_plates(version, context):
    write_group("memory://p/", version, stated(version, plate=PLATE), context)
    write_group("memory://p/B/03/", version, stated(version, well=WELL), context)
    write_image("memory://p/B/03/1/", version, context)
    plate = ome.open("memory://p/", context=context)
    assert (plate.version, plate.name, plate.rows) == (version, "screen", ("A", "B"))
    assert plate.columns == ("01", "03")
    assert plate.acquisitions[0].id == 1
    assert plate.acquisitions[0].json["starttime"] == 5
    assert list(plate.wells) == ["A/01", "B/03"]
    well = plate.wells["B/03"]
    assert (len(well.fields), well.acquisitions) == (2, (1, None))
    assert np.array_equal(well.fields[1].level(0).read().result(), VALUES)
    assert well.fields[-1] is well.fields[1]
    assert [one.name for one in well.fields[1:]] == ["cells"]
    with pytest.raises(gpustore.NotFoundError, match="0"):
        well.fields[0]
    with pytest.raises(gpustore.NotFoundError, match=r"p/\|zarr.:: well 'A/01': .*p/A/01/"):
        plate.wells["A/01"]
    with pytest.raises(gpustore.NotFoundError, match="no well 'C/01'; wells: A/01, B/03"):
        plate.wells["C/01"]
    assert len(ome.open("memory://p/B/03/", context=context).fields) == 2
    assert ome.open("memory://p/B/03/1/", context=context).name == "cells"
    assert "2 rows, 2 columns, 2 wells" in repr(plate)
    assert "2 fields" in repr(well)


@pytest.mark.parametrize("version", ["0.4", "0.6"])
def test_fields_of_all_wells(version, context):
    write_group("memory://p/", version, stated(version, plate=PLATE), context)
    for well in "A/01", "B/03":
        write_group(f"memory://p/{well}/", version, stated(version, well=WELL), context)
        for field in "01":
            write_image(f"memory://p/{well}/{field}/", version, context, name=well + field)
    plate = ome.open("memory://p/", context=context)
    assert list(plate.fields) == ["A/01/0", "A/01/1", "B/03/0", "B/03/1"]
    single = plate.fields["B/03/1"]
    found = dict(plate.fields.items())
    assert [one.name for one in found.values()] == ["A/010", "A/011", "B/030", "B/031"]
    assert found["B/03/1"] is single
    assert [one.shape[-1] for one in found["A/01/0"].levels] == [32, 16, 8]
    assert [one.level(1).shape for one in plate.fields.values()] == [(2, 8, 16, 16)] * 4
    assert np.array_equal(found["B/03/0"].level(0).read().result(), VALUES)
    assert repr(plate.fields) == f"<4 fields of {plate.url}>"
    assert [one.name for one in plate.wells["B/03"].fields] == ["B/030", "B/031"]
    with pytest.raises(gpustore.NotFoundError, match="no field 'B/03/2'; fields: A/01/0, A/01/1"):
        plate.fields["B/03/2"]


def test_documents_of_all_fields_are_read_once(tmp_path):
    plate = ome.create_plate(tmp_path / "p", rows="AB", columns="12")
    for well in "A/1", "B/2":
        for field in "012":
            plate.create_image(f"{well}/{field}", shape=(8, 8), dtype="uint8", axes="yx", levels=2)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    with HttpServer({str(one.relative_to(tmp_path)): one.read_bytes() for one in files}) as server:
        fields = ome.open(f"{server.url}/p/|zarr3:").fields
        server.requests.clear()
        assert [one.level(1).shape for one in fields.values()] == [(4, 4)] * 6
        # Those of two wells, of six fields, of their twelve levels.
        assert len(server.requests) == 2 + 6 + 12


def test_a_field_that_is_damaged_is_an_error_where_it_stands(context):
    write_group("memory://p/", "0.5", stated("0.5", plate=PLATE), context)
    for well in "A/01", "B/03":
        write_group(f"memory://p/{well}/", "0.5", stated("0.5", well=WELL), context)
    write_image("memory://p/A/01/0/", "0.5", context)
    group = write_image("memory://p/A/01/1/", "0.5", context)
    group["1"].kvstore["zarr.json"] = b"{"
    fields = iter(ome.open("memory://p/", context=context).fields.values())
    assert next(fields).level(1).shape == (2, 8, 16, 16)
    second = next(fields)
    with pytest.raises(gpustore.MetadataError, match=r"A/01/1/1/zarr\.json"):
        _ = second.level(1).shape
    with pytest.raises(gpustore.NotFoundError, match=r"p/.*: field 'B/03/0': .*B/03/0/zarr\.json"):
        next(fields)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"plate": {**PLATE, "rows": []}}, r"ome.plate.rows: expected a list"),
        ({"plate": {**PLATE, "wells": [{}]}}, r"plate.wells\[0\].path: expected a string, it is"),
        ({"plate": {**PLATE, "wells": [{"path": "../B"}]}}, r"wells\[0\].path: expected a path"),
        ({"well": {"images": [{"path": "/"}]}}, r"images\[0\].path: expected a path below"),
        ({"plate": {**PLATE, "wells": [PLATE["wells"][0]] * 2}}, r"wells\[1\].path: 'A/01' stands"),
        ({"plate": {**PLATE, "acquisitions": [{}]}}, r"acquisitions\[0\].id: expected an integer"),
        ({"plate": {**PLATE, "acquisitions": 1}}, r"acquisitions: expected a list, got 1"),
        ({"plate": []}, r"ome.plate: expected an object, got an empty list"),
        ({"well": {}}, r"ome.well.images: expected a list that is not empty, it is missing"),
        ({"well": {"images": [{"path": "0", "acquisition": "a"}]}}, r"images\[0\].acquisition"),
    ],
)
def test_wrong_members_are_named(members, text, context):
    write_group("memory://p/", "0.5", stated("0.5", **members), context)
    with pytest.raises(gpustore.MetadataError, match=text):
        ome.open("memory://p/", context=context)


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_collections(version, listed, context):
    attributes = stated(version, **{"bioformats2raw.layout": 3})
    write_group("memory://b/", version, attributes, context)
    write_image("memory://b/0/", version, context)
    write_image("memory://b/1/", version, context)
    if listed:
        series = stated(version, series=["1", "0"])
        write_group("memory://b/OME/", version, series, context)
    found = ome.open("memory://b/", context=context)
    assert isinstance(found, ome.Collection)
    assert found.images.paths == (("1", "0") if listed else ("0", "1"))
    assert found.images[0].name == "cells"


def test_another_layout_is_refused(context):
    write_group("memory://b/", "0.5", stated("0.5", **{"bioformats2raw.layout": 2}), context)
    with pytest.raises(gpustore.UnsupportedError, match="2 is not read, only 3 is"):
        ome.open("memory://b/", context=context)
