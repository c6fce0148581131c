"""What tests/test_parallel3d.py runs on ranks: small models on grids of data- and tensor-parallel ranks."""

from argparse import Namespace
from typing import Any

import numpy as np

from jobs import tensor_parallels
from minidist.mesh import Mesh
from minidist.parallel3d import make_engine


def train_all(comm: Any, cases: list[list[Any]]) -> dict[str, Any]:
    """Each case is [data, shard, tensor, zero, sequence, model, precision, optimizer, accumulate, recompute]."""
    results = {}
    for case in cases:
        data, shard, tensor, zero, sequence, model, *settings = case
        options = Namespace(data_ranks=data, shard=shard, tensor=tensor, zero=zero, sequence_parallel=sequence)
        made = tensor_parallels.settings(*settings)
        engine = make_engine(tensor_parallels.model(model), made, comm, options)
        result = tensor_parallels.train(engine)
        result["losses"] = np.sum(comm.all_gather_object(result["losses"]), axis=0)
        results[repr(case)] = result if comm.rank == 0 else {}
    return results


def along_axes(comm: Any) -> dict[str, Any]:
    """The world ranks beside which this rank finds itself on a grid of 2 x 3."""
    mesh = Mesh(comm, data=2, tensor=3)
    return {
        "place": mesh.place,
        "data": mesh.along("data").world_ranks,
        "tensor": mesh.along("tensor").world_ranks,
        "both": mesh.along("data", "tensor").world_ranks,
        "none": mesh.along().world_ranks,
    }
