"""One step of an engine, started by tests/test_audit.py: writes what Comm has counted to FOLDER/rank."""

import json
import sys
from pathlib import Path

import numpy as np

from jobs.engines import CONTEXT, ENGINES, VOCABULARY, model, settings
from minidist.mpi.over_mpi import world

if __name__ == "__main__":
    name, folder = sys.argv[1:]
    comm = world()
    engine = ENGINES[name](model("gpt"), settings("mixed", "adamw", 1, 0.5), comm)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (8, CONTEXT + 1))
    engine.backward(engine.forward(tokens[:, :-1], tokens[:, 1:]))
    engine.step()
    counted: dict[int, tuple[int, int]] = {}  # peer: (bytes, messages)
    for (_, peer), (nbytes, messages) in comm.ledger.sent.items():
        before = counted.get(peer, (0, 0))
        counted[peer] = (before[0] + nbytes, before[1] + messages)
    (Path(folder) / str(comm.rank)).write_text(json.dumps(counted))
