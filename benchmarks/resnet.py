"""ResNet-50 (He et al., CVPR 2016, arXiv:1512.03385) in plain torch modules.

Written out here because the measured models must not need torchvision.
"""

from __future__ import annotations

import torch
from torch import nn


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Bottleneck(nn.Module):
    """1x1 reduce, 3x3, 1x1 expand (x4), with a projected shortcut where the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.reduce = _conv(inputs, width, 1)
        self.middle = _conv(width, width, 3, stride)
        self.expand = _conv(width, 4 * width, 1)
        same = stride == 1 and inputs == 4 * width
        self.shortcut = nn.Identity() if same else _conv(inputs, 4 * width, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.reduce(x))
        y = torch.relu(self.middle(y))
        return torch.relu(self.expand(y) + self.shortcut(x))


class ResNet(nn.Module):
    """`blocks` bottlenecks per stage; input (n, 3, h, w), output (n, classes)."""

    def __init__(self, blocks: tuple[int, ...], classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        stages: list[nn.Module] = []
        inputs = 64
        for number, count in enumerate(blocks):
            width = 64 * 2**number
            for place in range(count):
                stride = 2 if place == 0 and number > 0 else 1
                stages.append(Bottleneck(inputs, width, stride))
                inputs = 4 * width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))  # type: ignore[no-any-return]


def resnet50() -> ResNet:
    model = ResNet((3, 4, 6, 3))
    for module in model.modules():  # statistics as after training, not the identity
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model
