"""Attention over sums of w tanh(a + b) or w (a - b)² as Triton kernels with an online softmax.

Neither pass makes a tensor of ``L·S``, and a call does not wait for the device, so that it can be
captured in a CUDA graph: whether the exponentials of a tile stay in float32's range is decided on
the device. Exponentials are taken once, relative to the middle of a block of rows or slots; a tile
needs one more of each unit, of both middles. Where a unit reaches too far from its middle, or all
is nearly 0, the tile takes tanh itself. Four units share a division. Nothing is added up by atomic
operations: the same call gives the same result.

With ``TRITON_INTERPRET=1`` the kernels run on the CPU, slowly, for tests.
"""

from attnbench_plugins.kernels._triton.backward import differentiate
from attnbench_plugins.kernels._triton.compiling import listen
from attnbench_plugins.kernels._triton.forward import attend

__all__ = ["attend", "differentiate"]

listen()
