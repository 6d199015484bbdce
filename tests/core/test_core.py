"""What every module asks of core, where the reference `core` has no room for it."""
import pytest
import torch

from minibert.core.seeds import seeded


def test_seeded_is_a_function_of_its_key():
    seeds = {seeded(a, b).initial_seed() for a in range(40) for b in range(40)}
    assert len(seeds) == 1600 and all(0 <= s < 2**63 for s in seeds)
    assert seeded(3, 4).initial_seed() == seeded(3, 4).initial_seed()
    state = torch.get_rng_state()
    seeded(1)
    assert torch.equal(state, torch.get_rng_state())
    for bad in ((), (-1,), (2, -3)):
        with pytest.raises(ValueError, match="whole numbers"): seeded(*bad)
