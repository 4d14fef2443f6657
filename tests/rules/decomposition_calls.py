"""One call of each op in `decompositions.txt`: its arguments, small and odd in size.

Takes nothing; gives `CALLS`, from the name of an overload to a function that makes arguments.
Floats ask for a gradient, but for what `fixed` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Make = Callable[[], Sequence[Any]]


def t(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


def fixed(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def share(*shape: int) -> torch.Tensor:
    """Numbers between 0 and 1, no gradient."""
    return torch.rand(shape) * 0.9 + 0.05


def ints(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape)


def mask(*shape: int) -> torch.Tensor:
    return torch.rand(shape) > 0.4


def statistics(*dims: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """An image, and the mean and 1/std over `dims`."""
    x = fixed(2, 4, 3, 5)
    variance, mean = torch.var_mean(x, dims, correction=0)
    return x, mean, (variance + 1e-5).rsqrt()


def _batch_norm(*flags: Any) -> Sequence[Any]:
    return (t(2, 4, 3, 5), t(4), t(4), fixed(4), share(4), *flags)


def _layer_norm_backward() -> Sequence[Any]:
    x = fixed(3, 5, 7)
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    rstd = (variance + 1e-5).rsqrt()
    return fixed(3, 5, 7), x, [7], mean, rstd, fixed(7), fixed(7), [True, True, True]


def _group_norm_backward() -> Sequence[Any]:
    x = fixed(2, 4, 3, 5)
    variance, mean = torch.var_mean(x.view(2, 2, 30), -1, correction=0)
    rstd = (variance + 1e-5).rsqrt()
    return fixed(2, 4, 3, 5), x, mean, rstd, fixed(4), 2, 4, 15, 2, [True, True, True]


def _batch_norm_backward(*more: Any) -> Sequence[Any]:
    x, mean, rstd = statistics(0, 2, 3)
    saved = (fixed(4), fixed(4), share(4), mean, rstd)
    return fixed(2, 4, 3, 5), x, *saved, True, 1e-5, [True, True, True], *more


def _rms_norm_backward() -> Sequence[Any]:
    x = fixed(3, 5)
    rstd = (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    return fixed(3, 5), x, [5], rstd, fixed(5), [True, True]


def _pool_backward() -> Sequence[Any]:
    x = fixed(1, 2, 6, 6)
    _, places = torch.ops.aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
    return fixed(1, 2, 3, 3), x, [2, 2], [2, 2], [0, 0], [1, 1], False, places


def _convolution_backward() -> Sequence[Any]:
    how = ([4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True])
    return fixed(1, 4, 4, 4), fixed(1, 3, 6, 6), fixed(4, 3, 3, 3), *how


def _log_softmax() -> torch.Tensor:
    return fixed(5, 7).log_softmax(1)


def _attention() -> Sequence[Any]:
    return t(1, 2, 5, 8), t(1, 2, 5, 8), t(1, 2, 5, 8)


_TARGETS = torch.tensor([1, 6, -100, 0, 3])
_ROWS = torch.tensor([0, 2, 2])
_PLACES = torch.tensor([[0, 1, 5], [2, 3, 1]])
_ALLOWED = torch.tensor([[True, False, True], [True, True, True]])

CALLS: Mapping[str, Make] = {
    "_batch_norm_with_update_functional.default": lambda: _batch_norm(0.1, 1e-5),
    "_foreach_lerp.Scalar": lambda: ([t(3), t(2, 5)], [fixed(3), fixed(2, 5)], 0.3),
    "_fused_rms_norm.default": lambda: (t(3, 5), [5], t(5), 1e-5),
    "_fused_rms_norm_backward.default": _rms_norm_backward,
    "_log_softmax.default": lambda: (t(5, 7), 1, False),
    "_log_softmax_backward_data.default": lambda: (fixed(5, 7), _log_softmax(), 1, torch.float32),
    "_native_batch_norm_legit.default": lambda: _batch_norm(True, 0.1, 1e-5),
    "_native_batch_norm_legit_functional.default": lambda: _batch_norm(True, 0.1, 1e-5),
    "_native_batch_norm_legit_no_training.default": lambda: _batch_norm(0.1, 1e-5),
    "_safe_softmax.default": lambda: (t(5, 7), 1),
    "_scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "_softmax.default": lambda: (t(5, 7), 1, False),
    "_softmax_backward_data.default": lambda: (
        fixed(5, 7),
        _log_softmax().exp(),
        1,
        torch.float32,
    ),
    "_to_copy.default": lambda: (t(5, 7),),
    "_unsafe_index.Tensor": lambda: (t(5, 7), [_ROWS, None]),
    "_unsafe_index_put.default": lambda: (fixed(5, 7), [_ROWS, None], fixed(3, 7), True),
    "_unsafe_masked_index.default": lambda: (fixed(4, 6), _ALLOWED, [None, _PLACES], 0.0),
    "_unsafe_masked_index_put_accumulate.default": lambda: (
        fixed(4, 6),
        _ALLOWED,
        [None, _PLACES],
        fixed(4, 2, 3),
    ),
    "_upsample_nearest_exact2d.default": lambda: (t(1, 2, 3, 4), [6, 8]),
    "add.Tensor": lambda: (t(5, 7), t(7)),
    "addcdiv.default": lambda: (t(5, 7), t(5, 7), share(5, 7)),
    "addcmul.default": lambda: (t(5, 7), t(5, 7), t(5, 7)),
    "addmm.default": lambda: (t(3), t(5, 7), t(7, 3)),
    "addmv.default": lambda: (t(5), t(5, 7), t(7)),
    "all.default": lambda: (mask(5, 7),),
    "all.dim": lambda: (mask(5, 7), 1),
    "amax.default": lambda: (t(5, 7), [1]),
    "arange.default": lambda: (7,),
    "arange.start": lambda: (2, 7),
    "arange.start_step": lambda: (2, 9, 3),
    "baddbmm.default": lambda: (t(2, 5, 3), t(2, 5, 7), t(2, 7, 3)),
    "batch_norm_backward.default": lambda: _batch_norm_backward(torch.empty(0, dtype=torch.uint8)),
    "bernoulli.p": lambda: (fixed(5, 7), 0.3),
    "binary_cross_entropy.default": lambda: (share(5, 7), share(5, 7)),
    "binary_cross_entropy_backward.default": lambda: (torch.tensor(0.7), share(5, 7), share(5, 7)),
    "binary_cross_entropy_with_logits.default": lambda: (t(5, 7), share(5, 7), None, share(7)),
    "bmm.default": lambda: (t(2, 5, 7), t(2, 7, 3)),
    "cat.default": lambda: ([t(5, 7), t(5, 2)], 1),
    "clamp.Tensor": lambda: (t(5, 7), fixed(7) - 1, fixed(7) + 1),
    "clamp.default": lambda: (t(5, 7), -0.5, 0.5),
    "clamp_max.default": lambda: (t(5, 7), 0.5),
    "clamp_min.default": lambda: (t(5, 7), -0.5),
    "convolution_backward.default": _convolution_backward,
    "elu.default": lambda: (t(5, 7),),
    "elu_backward.default": lambda: (fixed(5, 7), 1, 1, 1, False, fixed(5, 7)),
    "embedding_dense_backward.default": lambda: (fixed(3, 5), _ROWS, 4, -1, False),
    "empty_like.default": lambda: (fixed(5, 7),),
    "empty_permuted.default": lambda: ([2, 3, 5], [0, 2, 1]),
    "exponential_.default": lambda: (fixed(5, 7),),
    "flip.default": lambda: (t(5, 7), [0]),
    "floor_divide.Scalar": lambda: (fixed(5, 7), 0.7),
    "floor_divide.default": lambda: (fixed(5, 7), share(5, 7)),
    "full.default": lambda: ([3, 5], 2.5),
    "full_like.default": lambda: (fixed(5, 7), 2.5),
    "gelu.default": lambda: (t(5, 7),),
    "gelu_backward.default": lambda: (fixed(5, 7), fixed(5, 7)),
    "glu.default": lambda: (t(6, 7), 0),
    "glu_backward.default": lambda: (fixed(3, 7), fixed(6, 7), 0),
    "grid_sampler_2d.default": lambda: (t(1, 2, 5, 6), t(1, 3, 4, 2), 0, 0, False),
    "hardsigmoid.default": lambda: (t(5, 7),),
    "hardsigmoid_backward.default": lambda: (fixed(5, 7), fixed(5, 7)),
    "hardswish.default": lambda: (t(5, 7),),
    "hardswish_backward.default": lambda: (fixed(5, 7), fixed(5, 7)),
    "hardtanh.default": lambda: (t(5, 7),),
    "hardtanh_backward.default": lambda: (fixed(5, 7), fixed(5, 7), -1, 1),
    "huber_loss.default": lambda: (t(5, 7), t(5, 7), 2, 0.7),
    "huber_loss_backward.default": lambda: (torch.tensor(0.7), fixed(5, 7), fixed(5, 7), 1, 0.7),
    "index_add.default": lambda: (fixed(5, 7), 0, _ROWS, fixed(3, 7)),
    "index_select.default": lambda: (t(5, 7), 0, _ROWS),
    "isfinite.default": lambda: (fixed(5, 7),),
    "isin.Tensor_Tensor": lambda: (ints(9, 5, 7), torch.tensor([1, 3])),
    "leaky_relu.default": lambda: (t(5, 7),),
    "leaky_relu_backward.default": lambda: (fixed(5, 7), fixed(5, 7), 0.01, False),
    "lerp.Scalar": lambda: (t(5, 7), t(5, 7), 0.3),
    "lerp.Tensor": lambda: (t(5, 7), t(5, 7), t(5, 7)),
    "linalg_vector_norm.default": lambda: (t(5, 7), 2, [1]),
    "logsumexp.default": lambda: (t(5, 7), [1]),
    "masked_fill.Scalar": lambda: (t(5, 7), mask(5, 7), 0.5),
    "masked_fill.Tensor": lambda: (t(5, 7), mask(5, 7), torch.tensor(0.5)),
    "max_pool2d_with_indices.default": lambda: (t(1, 2, 6, 6), [2, 2], [2, 2]),
    "max_pool2d_with_indices_backward.default": _pool_backward,
    "mm.default": lambda: (t(5, 7), t(7, 3)),
    "mse_loss.default": lambda: (t(5, 7), t(5, 7), 2),
    "mse_loss_backward.default": lambda: (torch.tensor(0.7), fixed(5, 7), fixed(5, 7), 1),
    "nan_to_num.default": lambda: (t(5, 7),),
    "native_batch_norm.default": lambda: _batch_norm(True, 0.1, 1e-5),
    "native_batch_norm_backward.default": _batch_norm_backward,
    "native_dropout.default": lambda: (t(5, 7), 0.3, True),
    "native_dropout_backward.default": lambda: (fixed(5, 7), mask(5, 7), 1.5),
    "native_group_norm.default": lambda: (t(2, 4, 3, 5), t(4), t(4), 2, 4, 15, 2, 1e-5),
    "native_group_norm_backward.default": _group_norm_backward,
    "native_layer_norm.default": lambda: (t(3, 5, 7), [5, 7], t(5, 7), t(5, 7), 1e-5),
    "native_layer_norm_backward.default": _layer_norm_backward,
    "new_full.default": lambda: (fixed(5, 7), [3, 2], 2.5),
    "new_ones.default": lambda: (fixed(5, 7), [3, 2]),
    "new_zeros.default": lambda: (fixed(5, 7), [3, 2]),
    "nll_loss2d_backward.default": lambda: (
        torch.tensor(0.7),
        fixed(2, 3, 4, 5),
        ints(3, 2, 4, 5),
        share(3),
        1,
        -100,
        torch.tensor(1.5),
    ),
    "nll_loss2d_forward.default": lambda: (t(2, 3, 4, 5), ints(3, 2, 4, 5), share(3), 1, -100),
    "nll_loss_backward.default": lambda: (
        torch.tensor(0.7),
        fixed(5, 7),
        _TARGETS,
        share(7),
        1,
        -100,
        torch.tensor(1.5),
    ),
    "nll_loss_forward.default": lambda: (t(5, 7), _TARGETS, share(7), 1, -100),
    "normal_.default": lambda: (fixed(5, 7),),
    "one_hot.default": lambda: (ints(4, 5), 4),
    "ones.default": lambda: ([3, 5],),
    "ones_like.default": lambda: (fixed(5, 7),),
    "pixel_shuffle.default": lambda: (t(2, 8, 3, 3), 2),
    "pixel_unshuffle.default": lambda: (t(2, 2, 6, 6), 2),
    "rand_like.default": lambda: (fixed(5, 7),),
    "randint_like.default": lambda: (fixed(5, 7), 9),
    "randn_like.default": lambda: (fixed(5, 7),),
    "reflection_pad2d.default": lambda: (t(1, 2, 5, 6), [1, 2, 2, 1]),
    "reflection_pad2d_backward.default": lambda: (
        fixed(1, 2, 8, 9),
        fixed(1, 2, 5, 6),
        [1, 2, 2, 1],
    ),
    "relu6.default": lambda: (t(5, 7),),
    "replication_pad2d.default": lambda: (t(1, 2, 5, 6), [1, 2, 2, 1]),
    "roll.default": lambda: (t(5, 7), [2], [1]),
    "rsub.Scalar": lambda: (t(5, 7), 1.5),
    "rsub.Tensor": lambda: (t(5, 7), t(7)),
    "select_backward.default": lambda: (fixed(7), [5, 7], 0, 2),
    "select_scatter.default": lambda: (t(5, 7), t(7), 0, 2),
    "sigmoid_backward.default": lambda: (fixed(5, 7), share(5, 7)),
    "silu.default": lambda: (t(5, 7),),
    "silu_backward.default": lambda: (fixed(5, 7), fixed(5, 7)),
    "slice_backward.default": lambda: (fixed(2, 7), [5, 7], 0, 1, 3, 1),
    "smooth_l1_loss.default": lambda: (t(5, 7), t(5, 7), 1, 0.7),
    "smooth_l1_loss_backward.default": lambda: (fixed(5, 7), fixed(5, 7), fixed(5, 7), 0, 0.7),
    "softplus.default": lambda: (t(5, 7),),
    "softplus_backward.default": lambda: (fixed(5, 7), fixed(5, 7), 1, 20),
    "split.Tensor": lambda: (t(5, 7), 3),
    "square.default": lambda: (t(5, 7),),
    "squeeze.default": lambda: (t(5, 1, 7),),
    "squeeze.dim": lambda: (t(5, 1, 7), 1),
    "stack.default": lambda: ([t(5, 7), t(5, 7)], 1),
    "std.correction": lambda: (t(5, 7), [1]),
    "sum.default": lambda: (t(5, 7),),
    "t.default": lambda: (t(5, 7),),
    "tanh_backward.default": lambda: (fixed(5, 7), share(5, 7)),
    "threshold_backward.default": lambda: (fixed(5, 7), fixed(5, 7), 0),
    "transpose.int": lambda: (t(5, 7), 0, 1),
    "tril.default": lambda: (t(5, 7),),
    "triu.default": lambda: (t(5, 7),),
    "unbind.int": lambda: (t(5, 7), 1),
    "uniform_.default": lambda: (fixed(5, 7),),
    "upsample_bicubic2d.vec": lambda: (t(1, 2, 3, 4), [6, 8], False, None),
    "upsample_bilinear2d.vec": lambda: (t(1, 2, 3, 4), [6, 8], False, None),
    "upsample_nearest2d.default": lambda: (t(1, 2, 3, 4), [6, 8]),
    "var.default": lambda: (t(5, 7),),
    "where.ScalarOther": lambda: (mask(5, 7), t(5, 7), 0.5),
    "where.ScalarSelf": lambda: (mask(5, 7), 0.5, t(5, 7)),
    "zeros.default": lambda: ([3, 5],),
    "zeros_like.default": lambda: (fixed(5, 7),),
}
