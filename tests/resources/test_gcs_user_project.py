"""Tests of ``gcs_user_project`` against TensorStore."""

import pytest

from gpustore.runtime.context import Context
from tests.resources.oracle import compare


@pytest.mark.parametrize(
    "json", [{}, {"project_id": "p"}, {"project_id": 1}, {"project_id": None}, {"x": 1}, 5], ids=str
)
def test_json_is_what_tensorstore_makes_of_it(json):
    compare("gcs_user_project", json)


def test_value():
    assert Context()["gcs_user_project"].value is None
    assert Context({"gcs_user_project": {"project_id": "p"}})["gcs_user_project"].value == "p"
