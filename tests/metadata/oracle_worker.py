"""Opens metadata documents with the installed tensorstore, one a line, in a process of its own.

Reads lines ``["zarr3" or "zarr2", base64 of the document]`` and answers each with the opened
array's metadata and the bits of its fill value, or with the error's text.
"""

import base64
import json
import sys


def answer(tensorstore, version, document):
    driver, name = {"zarr3": ("zarr3", "zarr.json"), "zarr2": ("zarr", ".zarray")}[version]
    context = tensorstore.Context()
    kvstore = {"driver": "memory", "path": "a/"}
    tensorstore.KvStore.open(kvstore, context=context).result()[name] = document
    try:
        spec = {"driver": driver, "kvstore": kvstore}
        store = tensorstore.open(spec, context=context).result()
    except (ValueError, NotImplementedError) as error:
        return {"error": str(error).split(" [tensorstore_spec")[0]}
    fill_value = store.fill_value
    return {
        "metadata": store.spec().to_json()["metadata"],
        "dtype": store.dtype.name,
        "fill_value": None if fill_value is None else fill_value.tobytes().hex(),
        "labels": list(store.domain.labels),
        "units": [None if unit is None else unit.to_json() for unit in store.dimension_units],
    }


def main():
    import tensorstore

    for line in sys.stdin:
        version, document = json.loads(line)
        reply = answer(tensorstore, version, base64.b64decode(document))
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
