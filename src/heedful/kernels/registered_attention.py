"""Attention functions of ``heedful.register``, called as the kernels are."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from heedful.errors import HeedfulError
from heedful.layers.attention_kernels import float_mask, repeat_shared_rows
from heedful.layers.mask import Mask


class RegisteredAttention:
    """Calls a registered attention function, with keys and values for each query head and row, and one bias.

    Args:
        name: the registered name.
        function: (q, k, v, bias, scale, dropout) → (B, H, T, E), all of q, k and v (B, H, ·, E); ``bias`` broadcasts to
            the scores (B, H, T, S), −∞ where attention is not allowed. Its attribute ``weights``, a function (q, k,
            bias, scale) → (B, H, T, S), gives the weights with which it mixes the values; without it the pattern
            cannot be recorded or changed.
    """

    registered = True  # for ``heedful.layers.attention_kernels.is_registered``

    def __init__(self, name: str, function: Callable[..., Tensor]) -> None:
        self.__name__, self.function = name, function

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float, dropout: float
    ) -> Tensor:
        """Returns the output of the function (B, H, T, E); raises ``HeedfulError`` for another shape."""
        k, v, mask, bias = repeat_shared_rows(q, k, v, mask, bias)
        group = q.size(1) // k.size(1)
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        y = self.function(q, k, v, self._bias(q, k, mask, bias), scale, dropout)
        self._check_shape("output", y, (*q.shape[:3], v.size(3)))
        return y

    def weights(self, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None, scale: float) -> Tensor:
        """Returns the weights (B, H, T, S); raises ``HeedfulError`` for a function that does not give them, and for
        another shape.
        """
        weights = getattr(self.function, "weights", None)
        if weights is None:
            raise HeedfulError(
                f"the attention {self.__name__!r} does not give its weights, so that its pattern cannot be recorded or "
                "changed; add them: function.weights = lambda q, k, bias, scale: ..."
            )
        k = k.repeat_interleave(q.size(1) // k.size(1), dim=1)
        pattern: Tensor = weights(q, k, self._bias(q, k, mask, bias), scale)
        self._check_shape("weights", pattern, (*q.shape[:3], k.size(2)))
        return pattern

    def _check_shape(self, what: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
        if tensor.shape != shape:
            raise HeedfulError(
                f"the attention {self.__name__!r} returned {what} of shape {tuple(tensor.shape)}, not {tuple(shape)}; "
                f"correct the function{'' if what == 'output' else '.weights'}"
            )

    @staticmethod
    def _bias(q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None) -> Tensor:
        return float_mask(mask, q.new_empty(1).expand(q.size(0), q.size(1), q.size(2), k.size(2)), bias)
