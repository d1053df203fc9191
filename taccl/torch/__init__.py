"""Programs in place of the collectives of torch.distributed, over its point-to-point operations."""

from taccl.torch.collectives import Collectives, load

__all__ = ["Collectives", "load"]
