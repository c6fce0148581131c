"""What a rank holds of each group of parameters, and what its routers have decided."""

from typing import Any

import numpy as np

from minidist.cli.shared import mixture_of
from minidist.command import Job
from minidist.engine import Engine
from minidist.nn.layers import Batch, Block
from minidist.nn.mixture import Mixture, balance, choose, softmax
from minidist.nn.tensor import Tensor


def count(job: Job, engine: Engine) -> dict[str, Any]:
    """After training, on each rank: its parameters by group, and what its routers decided in the last update's step."""
    mixtures = [unit.mlp for unit in engine.units if isinstance(unit, Block) and isinstance(unit.mlp, Mixture)]
    scale, step = engine.loss_scale, engine.steps - 1
    if engine.scaled and scale.last_overflow == scale.step - 1:  # the last step has made no update
        step -= 1
    tallies = [of for mixture in mixtures for key, of in sorted(mixture.tallies.items()) if key[1] == step]
    every = [tally for of in tallies for tally in of]
    routed = [sum(parameter.size for mlp in each.experts for parameter in mlp.parameters) for each in mixtures]
    one = [sum(parameter.size for parameter in each.experts[0].parameters) for each in mixtures]
    hosts = np.sum([tally.hosts for tally in every], axis=0).tolist() if every and every[0].hosts else []
    return {
        "dense": sum(parameter.size for unit in engine.units for flat in unit.flats for parameter in flat.parameters)
        - sum(routed),
        "experts": sum(routed),
        "active experts": sum(mixture_of(job.own).top * size for size in one),
        "forwards": [tally.chosen for tally in every],
        "last": [of[-1].chosen for of in tallies],  # the backward follows it
        "latest": [of.tallies[max(of.tallies)][-1].chosen for of in mixtures if of.tallies],  # in any step
        "dropped": sum(tally.dropped for tally in every),
        "hosts": hosts,
        **({"leave": np.sum([tally.leave for tally in every], axis=0).tolist()} if hosts else {}),
        **(balance_losses(mixtures[0], engine) if mixtures else {}),
    }


def balance_losses(mixture: Mixture, engine: Engine) -> dict[str, float]:
    """The balance loss of a router that gives all experts the same probability, and of one that gives all of it to the
    same k."""
    e, k, tokens = mixture.number, mixture.routing.top, 6
    batch = Batch(np.zeros((1, tokens), np.int32), whole=tokens)
    even = np.zeros((1, tokens, e))
    few = np.where(np.arange(e) < k, 0.0, -1e3) * np.ones((1, tokens, 1))
    found = {}
    for name, logits in (("uniform", even), ("collapsed", few)):
        prob = softmax(logits)
        shares = mixture.shares(choose(prob, k), batch)
        found[name] = float(balance(Tensor(logits), prob, shares, mixture.routing.balance).data)
    return found
