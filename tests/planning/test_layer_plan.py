"""Plans of layers: who has which elements of a request. Against TensorStore: drivers/test_stack."""

import numpy as np

import gpustore
from gpustore.planning.layer_plan import LayerBounds, part_transform, plan_layers


def test_a_read_plans_with_the_layers_that_it_meets():
    low = np.array([[i, 0] for i in range(5000)])
    bounds = LayerBounds(gpustore.IndexDomain(shape=[5000, 4]), low, low + np.array([1, 4]))
    assert bounds.axis == 0
    assert bounds.meeting([7, 0], [9, 1]).tolist() == [7, 8]
    crop = gpustore.IndexTransform(input_shape=[5000, 4])[4998:, ::-1]
    parts = plan_layers(bounds, crop)
    assert [part.layer for part in parts] == [4998, 4999]
    assert part_transform(crop, parts[1]).domain == gpustore.IndexDomain(
        inclusive_min=[4999, -3], exclusive_max=[5000, 1]
    )
    rows = gpustore.IndexTransform(input_shape=[5000, 4])[[4, 4, 2, 9], 1:3]
    assert [(part.layer, part.start[0]) for part in plan_layers(bounds, rows)] == [
        (2, 2), (4, 0), (9, 3),
    ]  # fmt: skip
