"""One OpenMP thread, so that two test workers do not fight over two cores and sums repeat.

Without a GPU kernels run in Triton's interpreter, which has to be chosen before whatever a test
module imports brings Triton along.
"""

import os

import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
