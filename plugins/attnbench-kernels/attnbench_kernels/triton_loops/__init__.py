"""Attention over sums of w tanh(a + b) or w (a - b)² as Triton kernels with an online softmax.

Neither pass makes a tensor of ``L·S``, and a call does not wait for the device, so that it can be
captured in a CUDA graph: which form a tile takes is decided on the device. Exponentials are taken
once, before a kernel starts, and the weights of units are multiplied into them: a score is a sum of
``1 / (c + a b)``, four of which share a division. A tile whose products of four may overflow limits
them first; where a unit is too far from 0 on both sides, or all is nearly 0, it takes tanh itself.
Nothing is added up by atomic operations: the same call gives the same result.

With ``TRITON_INTERPRET=1`` the kernels run on the CPU, slowly, for tests.
"""

from attnbench_kernels.triton_loops.backward import differentiate
from attnbench_kernels.triton_loops.compiling import listen
from attnbench_kernels.triton_loops.forward import attend

__all__ = ["attend", "differentiate"]

listen()
