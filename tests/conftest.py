"""One OpenMP thread, so that two test workers do not fight over two cores and sums repeat."""

import torch

torch.set_num_threads(1)
