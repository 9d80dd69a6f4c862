"""Tests of the counters of the process in TensorStore's forms of metrics."""

import re
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import numpy as np
import pytest
import tensorstore

import gpustore
from gpustore.runtime.statistics import COUNTERS

NAME = re.compile(r"tensorstore_\w+")


@pytest.fixture(params=[gpustore, tensorstore], ids=["gpustore", "tensorstore"])
def api(request):
    api = request.param
    store = api.open(
        {"driver": "zarr3", "kvstore": "memory://"}, create=True, dtype="uint8", shape=[2]
    ).result()
    store.write(np.ones(2, "uint8")).result()
    store.read().result()
    return api


def test_metrics_are_names_and_values(api):
    found = api.experimental_collect_matching_metrics("/tensorstore/")
    assert found
    assert [one["name"] for one in found] == sorted(one["name"] for one in found)
    everything = api.experimental_collect_matching_metrics("", include_zero_metrics=True)
    assert len(everything) > len(found)
    for one in found:
        assert one.keys() == {"name", "values"}
        assert one["name"].startswith("/tensorstore/")
    assert api.experimental_collect_matching_metrics("/nothing/") == []


def test_metrics_are_lines_of_prometheus(api):
    lines = api.experimental_collect_prometheus_format_metrics("/tensorstore/")
    assert lines
    for line in lines:
        word, name, *_ = line.split() if line.startswith("#") else ("", *line.split())
        assert word in ("#", "")
        assert NAME.match(name) or name in ("HELP", "UNIT", "TYPE")
    assert api.experimental_collect_prometheus_format_metrics("/nothing/") == []


def test_metrics_are_the_counters_of_the_process():
    before = gpustore.statistics["reads"]
    gpustore.array([1, 2]).read().result()
    name = "/tensorstore/gpustore/reads"
    assert {"name": name, "values": [{"value": before + 1}]} in (
        gpustore.experimental_collect_matching_metrics(name)
    )
    lines = gpustore.experimental_collect_prometheus_format_metrics(name)
    assert lines == [
        f"# HELP tensorstore_gpustore_reads {COUNTERS['reads']}",
        f"tensorstore_gpustore_reads {before + 1}",
    ]
    bytes_ = gpustore.experimental_collect_prometheus_format_metrics(
        "/tensorstore/gpustore/bytes_fetched"
    )
    assert bytes_[1] == "# UNIT tensorstore_gpustore_bytes_fetched bytes"


class Gateway(BaseHTTPRequestHandler):
    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.got.append((self.path, body))
        self.send_response(404 if "refused" in self.path else 202)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def gateway():
    with HTTPServer(("127.0.0.1", 0), Gateway) as server:
        server.got = []
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_metrics_go_to_a_gateway(api, gateway):
    url = f"http://127.0.0.1:{gateway.server_port}/"
    push = api.experimental_push_metrics_to_prometheus
    assert push(url, "job", "a b", metric_prefix="/tensorstore/").result() == 202
    assert push(url, "refused").result() == 404
    (path, body), (other, _) = gateway.got
    assert path == "/metrics/job/job/instance@base64/YSBi"
    assert other == "/metrics/job/refused"
    assert body.startswith("# HELP tensorstore_")
    assert body.endswith("\n")


def test_bad_gateways_are_errors(api):
    push = api.experimental_push_metrics_to_prometheus
    with pytest.raises(ValueError, match="bad job"):
        push("http://127.0.0.1:1/").result()
    with pytest.raises(ValueError, match="bad host"):
        push("ftp://127.0.0.1/", "job").result()
    with pytest.raises(ValueError, match="UNAVAILABLE"):
        push("http://127.0.0.1:1/", "job").result()


def test_flags_of_logs_have_no_effect_and_say_so():
    gpustore.experimental_update_verbose_logging("", overwrite=True)
    with pytest.warns(UserWarning, match=r"\('file=2'\) has no effect"):
        gpustore.experimental_update_verbose_logging("file=2")
    gpustore.parse_tensorstore_flags(["program", "--other=1", "file"])
    with pytest.warns(UserWarning, match="--tensorstore_verbose_logging=1 has no effect"):
        gpustore.parse_tensorstore_flags(["program", "x", "--tensorstore_verbose_logging=1"])


@pytest.mark.parametrize("argv", ["text", [1], None])
def test_arguments_of_a_program_are_strings(api, argv):
    with pytest.raises(TypeError):
        api.parse_tensorstore_flags(argv)
