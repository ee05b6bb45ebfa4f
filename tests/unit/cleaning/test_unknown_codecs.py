"""A stored batch whose attributes name no codec is damage, also where it is rewritten."""

import numpy as np
import pytest

from varve.cleaning.compaction.rewrite import filter_compressed
from varve.foundation.errors import Corrupt
from varve.kernels.batch_filter import KEEP_TIMESTAMP
from varve.kernels.batch_layout import ATTRIBUTES_AT, HEADER_BYTES


@pytest.mark.parametrize("number", [5, 6, 7])
def test_a_rewrite_refuses_an_unknown_codec(number: int) -> None:
    batch = np.zeros(HEADER_BYTES + 20, np.uint8)
    batch[ATTRIBUTES_AT + 1] = number
    with pytest.raises(Corrupt, match=f"orders-0: codec number {number} is unknown"):
        filter_compressed(
            batch,
            horizon=KEEP_TIMESTAMP,
            keep=np.zeros(1, np.uint8),
            first_bit=0,
            where="orders-0",
        )
