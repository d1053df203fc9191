"""MSCCL++ plans with one operation changed at random."""

import random
from dataclasses import replace

from taccl.mscclpp.plan import Plan, PlanOp


def mutant(plan: Plan, draw: random.Random) -> Plan:
    """Return a plan with one operation left out, doubled, exchanged, or with another chunk."""
    rank = draw.randrange(plan.num_ranks)
    blocks = list(plan.ranks[rank].blocks)
    index = draw.choice([place for place, block in enumerate(blocks) if block.ops])
    ops = list(blocks[index].ops)
    at = draw.randrange(len(ops))
    kind = draw.choice(("drop", "double", "swap", "shift"))
    if kind == "drop":
        del ops[at]
    elif kind == "double":
        ops.insert(at, ops[at])
    elif kind == "swap" and at + 1 < len(ops):
        ops[at], ops[at + 1] = ops[at + 1], ops[at]
    else:
        ops[at] = shifted(ops[at], draw)
    blocks[index] = replace(blocks[index], ops=tuple(ops))
    ranks = list(plan.ranks)
    ranks[rank] = replace(ranks[rank], blocks=tuple(blocks))
    return replace(plan, ranks=tuple(ranks))


def shifted(op: PlanOp, draw: random.Random) -> PlanOp:
    if not op.sources or not op.targets:
        return op
    back = draw.random() < 0.5
    first, *more = op.sources if back else op.targets
    moved = (replace(first, index=max(0, first.index - 1)), *more)
    return replace(op, sources=moved) if back else replace(op, targets=moved)
