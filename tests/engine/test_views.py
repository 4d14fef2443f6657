"""Views that are answered without FakeTensor are what FakeTensor would give."""

import math
import random

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from eqsat.engine.memory import storage
from eqsat.engine.metadata import meta_key
from eqsat.engine.views import own_view

VIEW = torch.ops.aten.view.default


def split(rng, count):
    """A random shape with `count` elements."""
    sizes = [1] * rng.randint(0, 2)
    while count > 1:
        factor = rng.choice([f for f in range(2, count + 1) if count % f == 0])
        sizes.append(factor)
        count //= factor
    rng.shuffle(sizes)
    return sizes


@pytest.mark.parametrize("seed", range(20))
def test_static_sizes(seed):
    rng = random.Random(seed)
    mode = FakeTensorMode()
    old, new = split(rng, 360), split(rng, 360)
    value = mode.from_tensor(torch.randn(old))
    found = own_view(mode, VIEW, (value, new))
    with mode:
        expected = VIEW(value, new)
    real = torch.randn(old).view(new)
    assert meta_key(found) == meta_key(expected)
    assert (tuple(found.shape), found.stride()) == (tuple(real.shape), real.stride())
    assert storage(found) == storage(value) and found.numel() == math.prod(old)


def test_symbolic_sizes():
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    value = mode.from_tensor(torch.randn(6, 17, 64), static_shapes=False)
    a, b, c = value.shape
    for sizes in ([a * b, c], [a, 1, b, c], [1, a, b, c], [c * a * b], [a, b * c]):
        guards = len(env.guards)
        found = own_view(mode, VIEW, (value, sizes))
        assert len(env.guards) == guards
        with mode:
            assert meta_key(found) == meta_key(VIEW(value, sizes))
        assert storage(found) == storage(value)


def test_what_is_left_to_fake_tensor():
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    value = mode.from_tensor(torch.randn(6, 4), static_shapes=False)
    empty = mode.from_tensor(torch.randn(0, 4))
    a, b = value.shape
    with mode:
        calls = [
            (value.t(), [a * b]),
            (value, [a, -1]),
            (value, [a, a]),
            (value[:, :1].expand(a, b), [a * b]),
            (empty, [4, 0]),
        ]
    assert not [args for args in calls if own_view(mode, VIEW, args) is not None]
    assert own_view(FakeTensorMode(), VIEW, (value, [b, a])) is None
    assert own_view(mode, torch.ops.aten.permute.default, (value, [1, 0])) is None
