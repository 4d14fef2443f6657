"""TORCH_LOGS: the standard artifacts, as torch.compile users know them.

The graphs of the rule stages, the loop IR, fusion decisions and generated code are emitted
under torch's own artifact names, so TORCH_LOGS needs no new words.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from torch import fx
from torch._logging._internal import getArtifactLogger

from .lowering.fuse import FusionReport
from .lowering.loops import Program
from .lowering.show import show_program

_ARTIFACTS = (
    *("pre_grad_graphs", "post_grad_graphs", "ir_pre_fusion", "ir_post_fusion"),
    *("fusion", "output_code", "cudagraphs"),
)
# Named below torch, whose handlers (format, rank, TORCH_LOGS_OUT) then apply to them.
_loggers = {name: getArtifactLogger("torch.eqsat", name) for name in _ARTIFACTS}


def log_text(artifact: str, text: Callable[[], str]) -> None:
    """Print `text()` where the artifact is switched on; costs nothing otherwise."""
    logger = _loggers[artifact]
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s", text())


def log_fusion(report: FusionReport) -> None:
    """One line per join and per pair left apart, with the rule that decided."""
    log_text("fusion", lambda: "\n".join(_fusion_lines(report)))


def _fusion_lines(report: FusionReport) -> Iterator[str]:
    for pair in report.joined:
        yield f"fused {pair.producer} into {pair.consumer}: {pair.rule} ({pair.where})"
    for left in report.rejected:
        yield (
            f"not fused {left.producer}, {left.consumer}: {left.rule} ({left.where}): "
            f"{left.condition} with {left.values}"
        )


def log_graph(artifact: str, title: str, gm: fx.GraphModule) -> None:
    log_text(artifact, lambda: f"{title}\n{gm.print_readable(print_output=False)}")


def log_program(artifact: str, program: Program) -> None:
    log_text(artifact, lambda: show_program(program))
