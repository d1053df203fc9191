"""Layers of the models that the seeds train: parameters and multiply-adds, from the architectures.

Each weighted layer counts with the batch normalization behind it. Architectures are those of the
papers: VGG16 (arXiv 1409.1556, configuration D), ResNet-50 (arXiv 1512.03385, the stride in the
3x3 convolution as torchvision has it), WideResNet-50-2 (arXiv 1605.07146), and Pufferfish's
factorized ones (github.com/hwang595/Pufferfish, ``models/resnet.py``: HybridResNet,
LowRankBottleneckConv1x1).
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

ELEMENT = 4
"""Bytes of a gradient."""


class Layer(NamedTuple):
    """A layer with weights: parameters, and multiply-adds for one sample."""

    name: str
    params: int
    macs: int


Layers = tuple[Layer, ...]


def params_of(layers: Sequence[Layer]) -> int:
    """Return all parameters of a model."""
    return sum(layer.params for layer in layers)


def macs_of(layers: Sequence[Layer]) -> int:
    """Return the multiply-adds of a model for one sample."""
    return sum(layer.macs for layer in layers)


def times_of(layers: Sequence[Layer], step: int) -> list[tuple[int, int]]:
    """Return picoseconds of the forward and backward pass of each layer, `step` all together.

    Layers share the step by their multiply-adds, and a backward pass takes twice a forward pass: it
    has two products where that has one.
    """
    total = macs_of(layers)
    ends = [step * done // total for done in accumulate((one.macs for one in layers), initial=0)]
    return [((end - begin) // 3, end - begin - (end - begin) // 3) for begin, end in pairwise(ends)]


def _conv(name: str, kernel: int, ends: tuple[int, int], size: int, *, norm: bool = True) -> Layer:
    """Return a convolution between so many channels, with `size` x `size` outputs."""
    weights = kernel * kernel * ends[0] * ends[1]
    return Layer(name, weights + (2 * ends[1] if norm else 0), weights * size * size)


def _full(name: str, inputs: int, outputs: int) -> Layer:
    return Layer(name, inputs * outputs + outputs, inputs * outputs)


def vgg16() -> Layers:
    """Return VGG16 for 224 x 224 pixels and 1000 classes."""
    found: list[Layer] = []
    channels, size = 3, 224
    for stage, (count, width) in enumerate([(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)]):
        for number in range(count):
            one = _conv(f"conv{stage}.{number}", 3, (channels, width), size, norm=False)
            found.append(one._replace(params=one.params + width))
            channels = width
        size //= 2
    ends = (channels * size * size, 4096, 4096, 1000)
    return (*found, *(_full(f"fc{n}", *pair) for n, pair in enumerate(pairwise(ends))))


def resnet50(width: int = 1, rank: int | None = None) -> Layers:
    """Return ResNet-50, or WideResNet-50-2, perhaps with its last stage factorized.

    `width`: of the inner convolutions, 2 for WideResNet-50-2.
    `rank`: the part of the channels that the factors of the last stage have: 4 is a quarter.
    """
    found = [_conv("conv0", 7, (3, 64), 112)]
    channels, size = 64, 56
    for stage, blocks in enumerate((3, 4, 6, 3)):
        planes = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            ends = (channels, planes * width, 4 * planes)
            kept = rank if stage == 3 else None
            found += _bottleneck(f"{stage}.{block}", ends, (size, size // stride), kept)
            channels, size = ends[2], size // stride
    return (*found, _full("fc", channels, 1000))


def _bottleneck(
    name: str, ends: tuple[int, int, int], sizes: tuple[int, int], rank: int | None
) -> Iterator[Layer]:
    """Yield the convolutions of a block between so many channels, at sizes before and behind."""
    before, inner, behind = ends
    inside = inner // rank if rank else None
    yield from _factors(f"{name}.conv1", 1, (before, inner), (sizes[0], sizes[0]), inside)
    yield from _factors(f"{name}.conv2", 3, (inner, inner), (sizes[1], sizes[1]), inside)
    yield from _factors(f"{name}.conv3", 1, (inner, behind), (sizes[1], sizes[1]), inside)
    if name.endswith(".0"):
        inside = before // rank if rank else None
        yield from _factors(f"{name}.short", 1, (before, behind), sizes, inside)


def _factors(
    name: str, kernel: int, ends: tuple[int, int], sizes: tuple[int, int], rank: int | None
) -> Iterator[Layer]:
    """Yield a convolution, or its two factors: the second is 1 x 1 and has the stride."""
    if rank is None:
        yield _conv(name, kernel, ends, sizes[1])
    else:
        yield _conv(f"{name}u", kernel, (ends[0], rank), sizes[0], norm=False)
        yield _conv(f"{name}v", 1, (rank, ends[1]), sizes[1])
